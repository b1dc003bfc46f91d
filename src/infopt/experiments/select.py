"""Stage `select`: compose the winners, measure the composition, judge it, try it on fresh seeds.

The composition takes the winner of every earlier slice. It is measured again because winners do not
simply add up, at the highest rate it sustains, and against two kinds of rivals: ``unoptimized`` has
every option at its reference, ``without-<slice>`` has one winner taken back (leave one out). What
wins among them is validated on seeds that the search has not seen, beside two baselines that are
loaded with the highest rates of their own.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from infopt.bench.capacity import relaxed
from infopt.bench.rates import at_rate
from infopt.bench.slo import SLO
from infopt.experiments import capacity
from infopt.experiments.arms import Arm
from infopt.experiments.quantization import Judge
from infopt.experiments.select_spec import BASELINES, COMPOSED, STATIC, UNOPTIMIZED, WITHOUT
from infopt.experiments.slice_spec import merged
from infopt.experiments.slices import Probe, run_slice
from infopt.experiments.spec import SliceSpec
from infopt.select.quality import SCHEDULING_OPTIONS

HEADROOM = 0.9
"""Share of its highest rate at which each arm is validated: at the rate itself, other arrivals
would break the objective half of the time."""


def run(
    spec: SliceSpec, results_dir: str | Path, *, num_threads: int | None = None
) -> dict[str, Any]:
    """Run what is missing of the slice and return its manifest."""
    if spec.name == "capacity":
        return capacity.run(spec, results_dir, num_threads=num_threads)
    probes = [_quality_once(spec, num_threads)]
    return run_slice(spec, results_dir, num_threads=num_threads, probes=probes)


def capacity_arms(spec: SliceSpec, chosen: Iterable[Mapping[str, Any]]) -> SliceSpec:
    """Return the slice that searches the highest rates of the composition and the baselines."""
    winners = {name: entry["engine"] for name, entry in _deciding(chosen).items()}
    return capacity.capacity_spec(spec, merged(*winners.values()))


def finalists(
    spec: SliceSpec,
    chosen: Iterable[Mapping[str, Any]],
    ablations: Iterable[str] | None,
    rate_per_s: float,
) -> SliceSpec:
    """Return the slice that compares the composition with its rivals.

    Args:
        spec: From ``select_spec``, without candidates.
        chosen: What the earlier stages chose (see ``choose_stage``).
        ablations: Slices whose winner is taken back in a run of its own, where it differs from its
            reference; None for every slice that decides.
        rate_per_s: Of arrivals: the highest that the composition sustains.
    """
    slices = _deciding(chosen)
    winners = {name: entry["engine"] for name, entry in slices.items()}
    references = {name: entry["reference_engine"] for name, entry in slices.items()}
    candidates = {COMPOSED: merged(*winners.values()), UNOPTIMIZED: merged(*references.values())}
    for name in slices if ablations is None else ablations:
        if name in slices and winners[name] != references[name]:
            candidates[f"{WITHOUT}{name}"] = merged(*{**winners, name: references[name]}.values())
    judged = [*candidates]
    if not spec.quality_tier and not compresses_cache(candidates[COMPOSED]):
        judged = unjudged(candidates, winners, references)
    tier = (spec.quality_tier or "screen") if judged else None
    return dataclasses.replace(
        spec,
        candidates=candidates,
        reference=COMPOSED,
        workloads={"load": _pair_load(spec, rate_per_s)},
        quality_tier=tier,
        quality_reference=candidates[UNOPTIMIZED] if tier else None,
        options={**spec.options, "judged": judged},
    )


def unjudged(
    candidates: Mapping[str, Mapping[str, Any]],
    winners: Mapping[str, Mapping[str, Any]],
    references: Mapping[str, Mapping[str, Any]],
) -> list[str]:
    """Return the finalists that compute what no earlier stage has judged.

    Each stage judged its candidates on top of the winners before it. So quality is known with the
    first winners and the references of the rest, and unknown where a later winner stays without an
    earlier one: 4-bit weights that were judged in bfloat16 are something else in float32.

    Args:
        candidates: Engine options of the finalists.
        winners: Engine options of each slice's winner, in the order of the stages.
        references: The same of its reference.
    """
    steps = [{**references, **dict(list(winners.items())[:n])} for n in range(len(winners) + 1)]
    known = {_numerics(merged(*step.values())) for step in steps}
    return [slug for slug, options in candidates.items() if _numerics(options) not in known]


def compresses_cache(options: Mapping[str, Any]) -> bool:
    """Whether engine options change what is kept of keys and values.

    The stage that chose them judged them behind long prompts, which no finalist can be compared
    with: then the finalists are measured again.
    """
    return options.get("kv_cache_dtype", "auto") != "auto" or bool(options.get("kv_eviction"))


def validation(
    spec: SliceSpec,
    tried: Mapping[str, Any],
    rates: Mapping[str, Any],
    run_name: str | None,
) -> SliceSpec:
    """Return the slice that tries the chosen finalist and the baselines on fresh seeds.

    Args:
        spec: From ``select_spec``, without candidates.
        tried: Manifest of the finalists.
        rates: Manifest of the capacities.
        run_name: ``select/<slug>`` of the chosen run; None where nothing was feasible: then there
            is nothing to validate and the slice has no candidates.
    """
    if run_name is None:
        return spec
    runs = dict(zip(tried["records"], tried["candidates"], strict=True))
    slug = runs[run_name.removeprefix("select/")]
    arms = {slug: tried["candidates"][slug]} | {b: rates["candidates"][b] for b in BASELINES}
    found = rates["capacity"]
    loads = {name: _load(found[name]) for name in BASELINES} | {slug: _load(found[COMPOSED])}
    factor = found[STATIC]["slo_factor"]
    slo = spec.slo if factor == 1 else relaxed(SLO.from_spec(spec.slo), factor).to_dict()
    return dataclasses.replace(
        spec,
        candidates=arms,
        reference=slug,
        slo=slo,
        options={**spec.options, "loads": loads},
    )


def _pair_load(spec: SliceSpec, rate_per_s: float) -> dict[str, Any]:
    """Return a short load at the composition's rate: each finalist runs it many times."""
    search = spec.options["search"]
    count = max(search["min_requests"], math.ceil(rate_per_s * search["pair_s"]))
    return {**at_rate(spec.workloads["load"], rate_per_s), "num_requests": count}


def _load(found: Mapping[str, Any]) -> dict[str, Any]:
    size = found["batch_size"]
    fill = {"size": size, "timeout_s": found["timeout_s"]} if size else None
    return {"rate_per_s": HEADROOM * found["rate_per_s"], "fill": fill}


def _deciding(chosen: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    return {
        name: entry
        for stage in chosen
        for name, entry in stage["slices"].items()
        if entry.get("decides", True)
    }


def _numerics(options: Mapping[str, Any]) -> str:
    """Return a key that is equal where the same tokens are computed."""
    kept = {key: value for key, value in options.items() if key not in SCHEDULING_OPTIONS}
    return repr(sorted(kept.items(), key=lambda item: item[0]))


def _quality_once(spec: SliceSpec, num_threads: int | None) -> Probe:
    """Return the quality probe, which skips finalists that compute the same as an earlier one."""
    seen: set[str] = set()
    judge = Judge(spec, num_threads)

    def probe(arm: Arm, reference: Arm | None) -> dict[str, Any]:
        config = arm.llm.config.to_dict()
        numerics = _numerics(config)
        if arm.slug not in spec.options.get("judged", ()) or numerics in seen:
            return {}
        seen.add(numerics)
        return judge.probe(arm, reference)

    return probe
