"""Stage `select`: compose the winners, measure the composition, judge it, try it on fresh seeds.

The composition takes the winner of every earlier slice. It is measured again because winners do not
simply add up, and against two kinds of rivals: ``unoptimized`` has every option at its reference,
``without-<slice>`` has one winner taken back (leave one out). What wins among them is validated on
seeds that the search has not seen.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from infopt.experiments.arms import Arm
from infopt.experiments.probes import quality
from infopt.experiments.slices import Probe, run_slice
from infopt.experiments.spec import COMPOSED, UNOPTIMIZED, SliceSpec
from infopt.select.quality import SCHEDULING_OPTIONS


def run(
    spec: SliceSpec, results_dir: str | Path, *, num_threads: int | None = None
) -> dict[str, Any]:
    """Run what is missing of the slice and return its manifest."""
    return run_slice(spec, results_dir, num_threads=num_threads, probes=[_quality_once(spec)])


def finalists(
    spec: SliceSpec, chosen: Iterable[Mapping[str, Any]], ablations: Iterable[str]
) -> SliceSpec:
    """Return the slice that compares the composition with its rivals.

    Args:
        spec: From ``select_spec``, without candidates.
        chosen: What the earlier stages chose (see ``choose_stage``).
        ablations: Slices whose winner is taken back in a run of its own, where it differs from its
            reference.
    """
    slices = {
        name: entry
        for stage in chosen
        for name, entry in stage["slices"].items()
        if entry.get("decides", True)
    }
    winners = {name: entry["engine"] for name, entry in slices.items()}
    references = {name: entry["reference_engine"] for name, entry in slices.items()}
    candidates = {UNOPTIMIZED: _merge(references), COMPOSED: _merge(winners)}
    for name in ablations:
        if name in slices and winners[name] != references[name]:
            candidates[f"without-{name}"] = _merge({**winners, name: references[name]})
    tier = spec.quality_tier or ("screen" if compresses_cache(candidates[COMPOSED]) else None)
    return dataclasses.replace(
        spec, candidates=candidates, reference=UNOPTIMIZED, quality_tier=tier
    )


def compresses_cache(options: Mapping[str, Any]) -> bool:
    """Whether engine options change what is kept of keys and values.

    The stage that chose them judged them behind long prompts, which no finalist can be compared
    with: then the finalists are measured again.
    """
    return options.get("kv_cache_dtype", "auto") != "auto" or bool(options.get("kv_eviction"))


def validation(spec: SliceSpec, tried: Mapping[str, Any], run_name: str | None) -> SliceSpec:
    """Return the slice that tries the chosen finalist on fresh seeds.

    Args:
        spec: From ``select_spec``, without candidates.
        tried: Manifest of the finalists.
        run_name: ``select/<slug>`` of the chosen run; None where nothing was feasible: then there
            is nothing to validate and the slice has no candidates.
    """
    runs = dict(zip(tried["records"], tried["candidates"], strict=True))
    if run_name is None:
        return spec
    slug = runs[run_name.removeprefix("select/")]
    wanted = {name: tried["candidates"][name] for name in dict.fromkeys((UNOPTIMIZED, slug))}
    return dataclasses.replace(spec, candidates=wanted, reference=UNOPTIMIZED)


def _merge(options: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for part in options.values():
        merged |= part
    return merged


def _quality_once(spec: SliceSpec) -> Probe:
    """Return the quality probe, which skips finalists that compute the same as an earlier one."""
    seen: set[str] = set()

    def probe(arm: Arm, reference: Arm | None) -> dict[str, Any]:
        config = arm.llm.config.to_dict()
        numerics = repr({k: v for k, v in config.items() if k not in SCHEDULING_OPTIONS})
        if spec.quality_tier is None or numerics in seen:
            return {}
        seen.add(numerics)
        return {
            "quality": quality(arm.llm, spec.quality_tier, reference.llm if reference else None)
        }

    return probe
