"""Workloads by name: what is asked of a server, as plain seeded data.

>>> spec = {"kind": "synthetic", "num_requests": 8, "prompt_tokens": 128, "output_tokens": 32}
>>> requests = build_workload(spec, vocab_size=1000, seed=1)

`infopt.bench` reads the options of a kind from the signature of its function, so an unknown option
is an error that names the nearest valid one. Add a kind by decorating a function with
``@WORKLOADS.register(name)``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

# Importing the modules files their workloads in the registry.
from infopt.bench import (  # noqa: F401
    workload_grounded,
    workload_kinds,
    workload_open,
    workload_sessions,
    workload_trace,
)
from infopt.bench.options import call_with_options, check_count, option_names
from infopt.bench.stats import percentiles
from infopt.bench.text import Encoder, make_token_source
from infopt.bench.workload_types import WORKLOADS, WorkloadContext, WorkloadRequest
from infopt.corpus import Kind, Split

__all__ = [
    "WORKLOADS",
    "WorkloadRequest",
    "build_workload",
    "describe_workload",
    "workload_options",
]

_CORPORA: Mapping[str, Kind] = {"edit-code": "code"}
"""Corpora of kinds of workload that are about a kind of text."""


def build_workload(
    spec: Mapping[str, Any],
    *,
    tokenizer: Encoder | None = None,
    vocab_size: int | None = None,
    seed: int = 0,
    text_kind: Kind = "docs",
    text_split: Split = "train",
) -> list[WorkloadRequest]:
    """Build the requests of a workload, in order of arrival.

    Args:
        spec: ``{"kind": name, **options}``; ``WORKLOADS.names()`` lists the names and
            `workload_options` the options of each.
        tokenizer: Turns real text into prompts.
        vocab_size: Without a tokenizer, prompts are random ids below this.
        seed: The same seed gives the same requests.
        text_kind: Corpus that prompts are cut from (see `infopt.corpus`), where the kind of
            workload does not say.
        text_split: Part of it; quality is measured on the other one.

    Raises:
        ConfigError: Unknown kind or option.
        WorkloadError: Impossible value or malformed trace.
    """
    kind = _CORPORA.get(str(spec.get("kind")), text_kind)
    tokens = make_token_source(tokenizer, vocab_size=vocab_size, kind=kind, split=text_split)
    ctx = WorkloadContext(tokens, check_count("seed", seed, minimum=0))
    return call_with_options(WORKLOADS, spec, ctx)


def workload_options(kind: str) -> dict[str, bool]:
    """Return the options of a kind and whether each is required."""
    return option_names(WORKLOADS.get(kind))


def describe_workload(requests: Sequence[WorkloadRequest]) -> dict[str, Any]:
    """Return counts and length percentiles of a workload, as plain data for a result record."""
    span = requests[-1].arrival_s - requests[0].arrival_s if requests else 0.0
    groups = {r.prefix_group for r in requests if r.prefix_group is not None}
    return {
        "num_requests": len(requests),
        "span_s": span,
        "offered_rate_per_s": (len(requests) - 1) / span if span > 0 else None,
        "prompt_tokens": percentiles([len(r.prompt_token_ids) for r in requests]).to_dict(),
        "output_tokens": percentiles([r.max_tokens for r in requests]).to_dict(),
        "num_prefix_groups": len(groups),
    }
