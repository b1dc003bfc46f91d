r"""Several ways of keeping keys and values in a pool of one size: which holds how many sequences?

    python -m infopt.bench.kv_capacity_run smollm2-135m-instruct-q4_1 --context 4096 --seqs 6 \\
        auto int8 auto+snapkv:0.25 int8+snapkv:0.25 --out kv-capacity.json

A way is ``kv_cache_dtype`` and, behind a plus sign, method and budget of eviction. The pool holds
``--seqs`` sequences as they are. Memory set aside for each sequence that may run grows with
``max_num_seqs``, so it is set to a little more than what fits: the memory model says how many.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from infopt import __version__
from infopt.bench.kv_capacity import Capacity, measure_capacity, predict, rules_of
from infopt.errors import ConfigError
from infopt.hardware import fingerprint
from infopt.llm import LLM
from infopt.results import write_json

_SPARE = 2
"""Sequences beyond the prediction that the engine may run."""

_AT_MOST = 10_000


def parse_way(text: str) -> dict[str, Any]:
    """Return the engine options of ``int8+snapkv:0.25``.

    Raises:
        ConfigError: A budget is missing or no number.
    """
    dtype, plus, press = text.partition("+")
    options: dict[str, Any] = {"kv_cache_dtype": dtype}
    if not plus:
        return options
    method, _, budget = press.partition(":")
    try:
        share = float(budget)
    except ValueError:
        raise ConfigError(
            f"{text!r} has no budget.",
            field="way",
            value=text,
            remedy="Write it as int8+snapkv:0.25.",
        ) from None
    eviction: dict[str, Any] = {"method": method, "budget": share}
    if method == "snapkv":  # the question is short, and so is what it looks for
        eviction |= {"window": 8, "kernel": 31}
    return options | {"kv_eviction": eviction}


def measure_ways(
    model: str, ways: Sequence[str], *, context: int, seqs: int, **options: Any
) -> dict[str, Capacity]:
    """Count the sequences that each way holds in a pool of one size.

    Args:
        model: What runs.
        ways: See `parse_way`.
        context: Length of each prompt in tokens.
        seqs: Sequences of ``context`` tokens that the pool holds as they are.
        options: Further engine options.
    """
    shared = {"preemption": "swap", "enable_prefix_caching": False} | options
    pool_gib = _pool_gib(model, context, seqs, shared)
    found = {}
    for way in ways:
        wanted = {**shared, **parse_way(way), "kv_cache_memory_gib": pool_gib}
        with _fitted(model, context, seqs, wanted) as llm:
            found[way] = measure_capacity(llm, context)
    return found


def _pool_gib(model: str, context: int, seqs: int, options: Mapping[str, Any]) -> float:
    """Return the memory of so many whole sequences, and a page for each to grow into."""
    with LLM(model, max_num_seqs=1, kv_cache_memory_gib=0.05, **_without(options)) as llm:
        rules, _ = rules_of(llm)
    pages = rules.pages(context).full + rules.num_groups
    return (seqs * pages + 0.5) * rules.page_bytes / 2**30


def _fitted(model: str, context: int, seqs: int, options: Mapping[str, Any]) -> LLM:
    """Load an engine that may run a little more sequences than its pool holds, and no more.

    The more sequences may run, the more is set aside: the smallest limit above what fits is found
    by doubling and halving.
    """
    low = high = seqs
    while _fits(model, context, high, options) + _SPARE > high:
        low, high = high + 1, 2 * high
    while low < high:
        middle = (low + high) // 2
        if _fits(model, context, middle, options) + _SPARE <= middle:
            high = middle
        else:
            low = middle + 1
    return LLM(model, max_num_seqs=low, **options)


def _fits(model: str, context: int, max_num_seqs: int, options: Mapping[str, Any]) -> int:
    """Return how many sequences the memory model says the pool of such an engine holds."""
    with LLM(model, max_num_seqs=max_num_seqs, **options) as llm:
        return predict(llm, context, at_most=_AT_MOST).num_seqs


def _without(options: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in options.items() if k not in ("max_num_seqs", "kv_cache_memory_gib")}


def main() -> None:
    """Measure, print, and write JSON."""
    parser = argparse.ArgumentParser(description="Counts the sequences that a pool holds.")
    parser.add_argument("model")
    parser.add_argument("ways", nargs="+", help="int8, auto+snapkv:0.25, int8+snapkv:0.25, ...")
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--seqs", type=int, default=6, help="sequences the pool holds as they are")
    parser.add_argument("--chunk", type=int, default=256, help="max_num_batched_tokens")
    parser.add_argument("--group", type=int, default=32, help="kv_group_size")
    parser.add_argument("--residual", type=int, default=48, help="kv_residual")
    parser.add_argument("--out", type=Path, default=Path("kv-capacity.json"))
    given = parser.parse_args()
    found = measure_ways(
        given.model,
        given.ways,
        context=given.context,
        seqs=given.seqs,
        max_model_len=2 * given.context,
        max_num_batched_tokens=given.chunk,
        kv_group_size=given.group,
        kv_residual=given.residual,
    )
    base = next(iter(found.values())).num_seqs
    for way, capacity in found.items():
        times = capacity.num_seqs / base
        text = f"{capacity.num_seqs} sequences ({times:.2f}x), predicted {capacity.predicted_seqs}"
        print(f"{way}: {text}, {capacity.bytes_per_token:.0f} bytes per token")
    write_json(
        given.out,
        {
            "date": datetime.now(UTC).date().isoformat(),
            "infopt": __version__,
            "model": given.model,
            "context": given.context,
            "hardware": fingerprint(),
            "ways": {way: capacity.to_dict() for way, capacity in found.items()},
        },
    )


if __name__ == "__main__":
    main()
