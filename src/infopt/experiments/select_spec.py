"""The slices of the last stage: what each measures, before it is known who takes part.

``capacity`` searches the highest rate of the composition and of two baselines, ``finalists`` loads
the composition and its rivals with that rate, ``validation`` loads the chosen finalist and the
baselines with theirs on fresh seeds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from infopt.errors import ConfigError, nearest
from infopt.experiments.spec import SliceSpec, common_values

COMPOSED = "composed"
UNOPTIMIZED = "unoptimized"
"""Finalists with every option at its winner, and at its reference."""

WITHOUT = "without-"
"""Begins the name of a finalist with one winner taken back."""

STATIC = "static"
CONTINUOUS = "continuous"
BASELINES: Mapping[str, Mapping[str, Any]] = {
    STATIC: {"dtype": "bfloat16", "scheduling": "static", "enable_prefix_caching": False},
    CONTINUOUS: {"dtype": "bfloat16"},
}
"""What a recommendation is compared with: fixed batches, whose size and waiting are tuned, and
continuous batching; both in bfloat16 and with the engine's defaults otherwise."""

SLICES = ("capacity", "finalists", "validation")


def select_spec(config: Mapping[str, Any], name: str) -> SliceSpec:
    """Return a slice of the last stage; its candidates are known when the others have ended.

    Args:
        config: Completed configuration.
        name: ``capacity`` and ``finalists`` (on the seed of the search) or ``validation`` (on
            fresh ones).

    Raises:
        ConfigError: There is no such slice.
    """
    if name not in SLICES:
        raise ConfigError(
            f"The stage select has no slice {name!r}.{nearest(name, SLICES)}",
            field="slice",
            value=name,
            remedy=f"Slices: {', '.join(SLICES)}.",
        )
    entry = config["select"]
    spec = SliceSpec(
        stage="select",
        name=name,
        reference="",
        shared={},
        candidates={},
        workloads={"load": config["workloads"][entry["workload"]]},
        load="open",
        repeats=config["repeats"],
        criterion=entry["objective"],
        options={"search": entry["search"]},
        **common_values(config),
    )
    if name == "capacity":
        return dataclasses.replace(spec, options={**spec.options, "static": entry["static"]})
    if name == "finalists":
        return dataclasses.replace(spec, quality_tier=entry["quality_tier"])
    seeds = tuple(entry["validation_seeds"])
    return dataclasses.replace(spec, seeds=seeds, repeats=len(seeds))
