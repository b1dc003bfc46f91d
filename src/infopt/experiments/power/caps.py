"""The slice `caps`: the same work under power caps and locked clocks of a GPU.

It exists only where the configuration lists it. On a machine without NVML it is skipped with the
reason; without permission it is refused before anything is measured, with the remedy. Whatever ends
it, the board is put back (`infopt.energy.power_settings`). Settings take time to be taken, so the
runs of one setting follow each other: no pairs, no verdict, an interval per setting.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from infopt.energy.errors import CounterUnreadableError
from infopt.energy.nvml import handle_of, load_nvml
from infopt.energy.nvml_power import NvmlPowerSettings
from infopt.energy.power_settings import PowerPoint, PowerSettings
from infopt.energy.power_sweep import PowerSweep, run_sweep
from infopt.experiments.power.skipping import SkippedError, runs_on_gpu
from infopt.experiments.slice_spec import SliceSpec
from infopt.experiments.slices import run_slice

OpenSettings = Callable[[], PowerSettings]


def open_board() -> PowerSettings:
    """Return the settings of the GPU that the model runs on.

    Raises:
        SkippedError: There is no NVML here, or it does not know the board.
    """
    try:
        nvml = load_nvml()
        return NvmlPowerSettings(nvml, handle_of(nvml, torch.device("cuda", 0)))
    except CounterUnreadableError as error:
        raise SkippedError(f"power settings cannot be reached: {error.message}") from error


def run_caps(
    spec: SliceSpec,
    results_dir: str | Path,
    *,
    num_threads: int | None,
    open_settings: OpenSettings = open_board,
    has_gpu: Callable[[SliceSpec], bool] = runs_on_gpu,
) -> dict[str, Any]:
    """Run the sweep and return its manifest.

    Args:
        spec: With ``caps_w`` and ``clocks_mhz`` among its options.
        results_dir: Folder of all results.
        num_threads: Compute threads.
        open_settings: Opens the board.
        has_gpu: Whether the model runs on a GPU.

    Raises:
        SkippedError: The model runs on the CPU, or there is no NVML.
        PowerPermissionError: This user may not change the settings.
        PowerControlError: The board does not take one, or cannot be put back.
    """
    sweep = PowerSweep(tuple(spec.options["caps_w"]), tuple(spec.options["clocks_mhz"]))
    if not has_gpu(spec):
        raise SkippedError("the model runs on the CPU; caps and clocks are set through NVML")
    state_file = Path(results_dir, "power_state.json")
    manifests: list[dict[str, Any]] = []

    def work(point: PowerPoint) -> None:
        one = dataclasses.replace(spec, candidates={point.slug: {}}, reference=point.slug)
        manifests.append(run_slice(one, results_dir, num_threads=num_threads))

    run_sweep(sweep, open_settings, state_file, work)
    first, last = manifests[0], manifests[-1]
    return {
        **first,
        "records": [slug for m in manifests for slug in m["records"]],
        "candidates": {
            slug: options for m in manifests for slug, options in m["candidates"].items()
        },
        "reference": PowerPoint().slug,
        "ended": last["ended"],
        "num_resumed": sum(m["num_resumed"] for m in manifests),
        "duration_s": round(sum(m["duration_s"] for m in manifests), 3),
    }
