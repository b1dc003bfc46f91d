"""Everything that is worth knowing about a machine with a GPU, in a few minutes.

    python -m infopt.bench.gpu_check --out gpu-check.json

Runs with torch, triton, transformers, safetensors and numpy alone; what is missing is recorded.
Sections, each with a share of the time and guarded by itself, so that a failure costs one section:

1. environment: versions, device, what is missing;
2. kernels: every Triton kernel against its reference, its time against the machine's roofline;
3. invariance: do float32 rows keep their bits in any batch?
4. engine on random weights in the shapes of Qwen3-0.6B and Llama-3.1-8B: agreement with
   transformers, decode rates beside it (paired), energy through NVML, and decode rates with and
   without CUDA graphs (paired).

The report is written after each section. ``--device cpu`` is a rehearsal on tiny shapes in Triton's
interpreter; it needs ``TRITON_INTERPRET=1`` and says nothing about speed.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import platform
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from infopt import __version__
from infopt.bench.gpu.budget import Budget
from infopt.errors import BackendError

PACKAGES = ("torch", "triton", "transformers", "safetensors", "numpy", "pynvml", "flash_attn")
DEFAULT_BUDGET_S = 330.0
_SHARES = {"kernels": 0.45, "invariance": 0.1, "qwen3-0.6b": 0.4, "llama-3.1-8b": 0.9, "tiny": 0.9}
"""Part of the time left that a section may take."""

Section = Callable[[torch.device, Budget], dict[str, Any]]


def run_check(
    out: Path, device: torch.device, budget_s: float, only: list[str] | None = None
) -> dict[str, Any]:
    """Run all sections and write the report after each.

    Args:
        out: JSON file.
        device: ``cuda``, or ``cpu`` for a rehearsal.
        budget_s: Seconds in all.
        only: Names of sections (default: all).

    Raises:
        BackendError: If the kernels cannot run on the device at all.
    """
    _check_device(device)
    total = Budget(budget_s)
    report: dict[str, Any] = {"environment": environment(device), "sections": {}}
    write_report(out, report)
    for name, section in sections(device).items():
        if only and name not in only:
            continue
        report["sections"][name] = _guarded(section, device, total.share(_SHARES[name]))
        write_report(out, report)
        print(summary_line(name, report["sections"][name]), flush=True)
    return report


def sections(device: torch.device) -> dict[str, Section]:
    """Return the sections for a device, in order."""
    from infopt.bench.gpu.engine import engine_section
    from infopt.bench.gpu.invariance import invariance_section
    from infopt.bench.gpu.kernels import kernel_section

    found: dict[str, Section] = {"kernels": kernel_section, "invariance": invariance_section}
    backend = "auto" if device.type == "cuda" else "triton"
    for shape in ("qwen3-0.6b", "llama-3.1-8b") if device.type == "cuda" else ("tiny",):
        found[shape] = lambda d, b, shape=shape: engine_section(shape, d, b, backend)
    return found


def environment(device: torch.device) -> dict[str, Any]:
    """Return versions, the device, and which packages are missing."""
    versions = {name: _version(name) for name in PACKAGES}
    found: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "infopt": __version__,
        "python": platform.python_version(),
        "cuda": torch.version.cuda,
        "versions": versions,
        "missing": [name for name, version in versions.items() if version is None],
        "device": device.type,
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {
            "gpu": properties.name,
            "compute_capability": f"{properties.major}.{properties.minor}",
            "memory_bytes": properties.total_memory,
            "multiprocessors": properties.multi_processor_count,
        }
    return found


def write_report(out: Path, report: dict[str, Any]) -> None:
    """Write the report in one step; numbers that JSON cannot hold become None."""
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = out.with_name(f".{out.name}.tmp")
    temporary.write_text(json.dumps(_finite(report), indent=1, allow_nan=False), encoding="utf-8")
    temporary.replace(out)


def summary_line(name: str, section: dict[str, Any]) -> str:
    """Return a line for the screen."""
    if section["status"] != "ok":
        return f"{name}: failed: {section['reason']}"
    result, took = section["result"], f"{section['seconds']:.0f} s"
    if "cases" in result:
        failed = ", ".join(result["failed"]) or "none"
        return f"{name}: {len(result['cases'])} cases, failed: {failed} ({took})"
    if "decode" in result:
        ratios = [
            f"{batch}: {rates['ratios']['infopt']['median']:.2f}x"
            for batch, rates in result["decode"].items()
            if "ratios" in rates
        ]
        graphs = result.get("graphs", {})
        gains = [
            f"{batch}: {rates['ratios']['graphs']['median']:.2f}x"
            for batch, rates in graphs.get("decode", {}).items()
            if "ratios" in rates
        ]
        against = ", ".join(gains) or f"{graphs.get('state')}, {graphs.get('reason')}"
        return (
            f"{name}: decode against transformers {', '.join(ratios)}; "
            f"graphs against launches {against} ({took})"
        )
    return f"{name}: {result} ({took})"


def main() -> None:
    """Run the check."""
    parser = argparse.ArgumentParser(description="Checks kernels and engine on a GPU.")
    parser.add_argument("--out", type=Path, default=Path("gpu-check.json"))
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--budget-s", type=float, default=DEFAULT_BUDGET_S)
    parser.add_argument("--only", action="append", help="run this section alone (repeatable)")
    options = parser.parse_args()
    report = run_check(options.out, torch.device(options.device), options.budget_s, options.only)
    failed = [n for n, s in report["sections"].items() if s["status"] != "ok"]
    raise SystemExit(f"failed sections: {', '.join(failed)}" if failed else 0)


def _guarded(section: Section, device: torch.device, budget: Budget) -> dict[str, Any]:
    started = time.monotonic()
    try:
        if budget.is_spent:
            return {"status": "skipped", "reason": "no time left", "seconds": 0.0}
        result = {"status": "ok", "result": section(device, budget)}
    except Exception as error:  # recorded: the next section must run
        result = {"status": "failed", "reason": f"{type(error).__name__}: {error}"[:1000]}
    return result | {"seconds": time.monotonic() - started}


def _check_device(device: torch.device) -> None:
    if importlib.util.find_spec("triton") is None:
        reason: str | None = "triton is not installed"
    elif device.type == "cuda" and not torch.cuda.is_available():
        reason = "torch sees no CUDA device"
    else:
        from infopt.kernels.triton_ops.common import why_not_device

        reason = why_not_device(device)
    if reason is not None:
        raise BackendError(
            f"the check cannot run on {device}: {reason}.",
            field="device",
            value=str(device),
            remedy="TRITON_INTERPRET=1 with --device cpu rehearses it without a GPU.",
        )


def _version(module: str) -> str | None:
    if importlib.util.find_spec(module) is None:
        return None
    owners = importlib.metadata.packages_distributions().get(module, [module])
    try:
        return importlib.metadata.version(owners[0])
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and value - value != 0:  # NaN or infinite
        return None
    return value


if __name__ == "__main__":
    main()
