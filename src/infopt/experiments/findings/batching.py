"""Findings of the batching notebook, one sentence per question, from the numbers of the run."""

from __future__ import annotations

from infopt.experiments.findings.data import StageResults
from infopt.experiments.findings.tables import ratio_sentence
from infopt.plotting.data import is_missing
from infopt.select.rows import Row, rows_of


def scheduling(data: StageResults) -> str:
    """Say what continuous batching gains over static batching, and why."""
    continuous, static = data.row("scheduling", "continuous"), data.row("scheduling", "static")
    return (
        f"Continuous batching gave {ratio_sentence(continuous, 'output_tokens_per_s')}. The reason "
        f"is in the table: {continuous['extra.mean_seqs_per_step']:.1f} sequences shared a step on "
        f"average instead of {static['extra.mean_seqs_per_step']:.1f}, so that each reading of the "
        "weights made more tokens."
    )


def batch_size(data: StageResults) -> str:
    """Say what more sequences at once gain and cost."""
    few, many = _ends(data, "max_num_seqs", "config.max_num_seqs")
    gain = many["throughput.output_tokens_per_s"] / few["throughput.output_tokens_per_s"]
    price = many["latency.tpot_s.p50"] / few["latency.tpot_s.p50"]
    return (
        f"From {few['config.max_num_seqs']:.0f} to {many['config.max_num_seqs']:.0f} sequences at "
        f"once the throughput rose **{gain:.1f}x**, while the time between a user's tokens rose "
        f"{price:.1f}x. Take the largest number whose time per token you can promise."
    )


def token_budget(data: StageResults) -> str:
    """Say what a smaller token budget does to gaps and to the first token."""
    small, large = _ends(data, "token_budget", "config.max_num_batched_tokens")
    return (
        f"With {small['config.max_num_batched_tokens']:.0f} tokens per step {_gaps(small)}; with "
        f"{large['config.max_num_batched_tokens']:.0f} tokens {_gaps(large)}. Choose by what your "
        "users feel: an answer that stutters, or one that starts late."
    )


def page_size(data: StageResults) -> str:
    """Say how much memory small and large pages waste."""
    tight, wide = _ends(data, "page_size", "config.block_size")
    return (
        f"Pages of {tight['config.block_size']:.0f} tokens left "
        f"{tight['memory.kv_waste_share']:.1%} of their slots empty, pages of "
        f"{wide['config.block_size']:.0f} tokens {wide['memory.kv_waste_share']:.1%}. Memory that "
        "is wasted is memory in which no further request runs."
    )


def prefix_cache(data: StageResults) -> str:
    """Say what the prefix cache saved."""
    cached = data.row("prefix_cache", "cache-on")
    return (
        f"The cache served {cached['extra.prefix_hit_share']:.0%} of all prompt tokens and gave "
        f"{ratio_sentence(cached, 'ttft_s')}. It costs nothing where nothing is shared: its pages "
        "are the first to be given away. The first request of a group always reads its prompt, so "
        "the share grows with the number of requests."
    )


def answer(data: StageResults) -> str:
    """List what was chosen for each question."""
    lines = [f"- **{name}**: `{entry['chosen']}`" for name, entry in data.chosen.items()]
    text = "On this machine, for this traffic:\n\n" + "\n".join(lines)
    if data.is_miniature:
        text += "\n\nThese are first impressions of a miniature; `make run` measures properly."
    return text


def check(data: StageResults) -> None:
    """Assert what the notebook claims.

    Raises:
        AssertionError: A claim does not hold for these results.
    """
    assert set(data.table["status"]) == {"ok"}, "every run reached its end"
    pages = sorted(rows_of(data.rows("page_size")), key=lambda row: row["config.block_size"])
    waste = [row["memory.kv_waste_share"] for row in pages]
    assert waste == sorted(waste), "larger pages waste more"
    hits = {r["extra.candidate"]: r["extra.prefix_hit_share"] for r in _rows(data, "prefix_cache")}
    assert hits["cache-off"] == 0 < hits["cache-on"], "the cache was used where it was on"
    for name, entry in data.chosen.items():
        row = data.row(name, entry["chosen"])
        verdict = row.get("comparison.output_tokens_per_s.verdict")
        assert name != "scheduling" or verdict != "worse", "a chosen candidate is never worse"


def _rows(data: StageResults, name: str) -> list[Row]:
    return rows_of(data.rows(name))


def _ends(data: StageResults, name: str, column: str) -> tuple[Row, Row]:
    """Return the candidates with the smallest and the largest value of an option."""
    rows = sorted(_rows(data, name), key=lambda row: row[column])
    return rows[0], rows[-1]


def _gaps(row: Row) -> str:
    # The rare long gaps are the point; p99 needs 100 gaps, which a miniature may not have.
    name, part = ("p99", "hundred") if not is_missing(row["latency.itl_s.p99"]) else ("p90", "ten")
    return (
        f"one gap in {part} between tokens was longer than "
        f"{1e3 * row[f'latency.itl_s.{name}']:.0f} ms and the median first token came after "
        f"{1e3 * row['latency.ttft_s.p50']:.0f} ms"
    )
