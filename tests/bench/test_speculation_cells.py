"""Cells of speculation on a small random model, and the arithmetic around them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from infopt.bench.speculation import make_cells, make_pools, near_formula, summarize
from infopt.bench.speculation_cells import (
    MIN_REQUESTS,
    Cell,
    Pool,
    decode_rate,
    decode_steps,
    formula_tokens,
    measure_cell,
    sort_requests,
)
from infopt.bench.workload_types import WorkloadRequest
from infopt.engine.draft_stats import DraftStats
from infopt.errors import MeasurementError
from infopt.llm import LLM
from infopt.speculative.theory import expected_tokens

WORKLOAD = {"kind": "edit", "num_requests": 1, "text_tokens": 16, "output_tokens": 20}


def make_llm(folder: Any, **options: Any) -> LLM:
    common: dict[str, Any] = {"dtype": "float32", "num_threads": 1, "max_num_seqs": 4}
    common |= {"num_kv_pages": 200, "max_model_len": 256}
    return LLM(str(folder), **common, **options)


@pytest.fixture(scope="module")
def reference(tiny_model_dir) -> Iterator[LLM]:
    with make_llm(tiny_model_dir("llama")) as llm:
        yield llm


@pytest.fixture(scope="module")
def guessing(tiny_model_dir) -> Iterator[LLM]:
    """Guesses from the first repeated token on, so that a random model is guessed at all."""
    options = {"method": "ngram", "prompt_lookup_min": 1, "num_speculative_tokens": 3}
    with make_llm(tiny_model_dir("llama"), speculative=options) as llm:
        yield llm


def requests_of(count: int) -> list[WorkloadRequest]:
    return [WorkloadRequest(f"r{i}", 0.0, [5 + i] * 4, 8) for i in range(count)]


def test_a_cell_takes_what_it_needs_and_repeats_what_is_missing() -> None:
    pool = Pool(requests_of(3), requests_of(1))
    four = pool.take(Cell("edit", 4))
    assert [r.prompt_token_ids[0] for r in four] == [5, 6, 7, 5]
    assert len({r.request_id for r in four}) == 4
    assert len(pool.take(Cell("edit", 1))) == MIN_REQUESTS
    looping = pool.take(Cell("edit", 2, is_degenerate=True))
    assert {r.prompt_token_ids[0] for r in looping} == {5}
    assert Pool([], []).take(Cell("edit", 4)) == []


def test_looping_answers_are_set_apart(reference: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Cell("edit", 4)
    pool = sort_requests(reference, WORKLOAD, cell, cell.num_requests)
    assert len(pool.sound) + len(pool.looping) == 4 * 1.5 + MIN_REQUESTS
    monkeypatch.setattr("infopt.bench.speculation_cells.is_degenerate", lambda ids: ids[0] % 2 == 0)
    split = sort_requests(reference, WORKLOAD, cell, cell.num_requests)
    assert split.sound
    assert split.looping
    assert not {r.request_id for r in split.sound} & {r.request_id for r in split.looping}


def test_a_cell_is_measured_in_pairs(reference: LLM, guessing: LLM) -> None:
    cell = Cell("edit", 2)
    requests = sort_requests(reference, WORKLOAD, cell, 8).sound or requests_of(2)
    requests = Pool(requests, []).take(cell)
    result = measure_cell(reference, guessing, cell, requests, repeats=3)
    assert result.cell is cell
    assert result.ratio.num_pairs == 3
    assert result.ratio.verdict == "undecided", "three pairs prove nothing"
    assert result.ratio.low <= result.ratio.median <= result.ratio.high
    assert result.reference_rate > 0
    assert result.num_distinct == 2
    stats = guessing.engine.draft_stats
    assert stats is not None
    assert result.proposed == stats.proposed
    assert 0 < result.drafted_share <= 1
    assert 1 <= result.tokens_per_pass <= 4
    assert result.verify_cost > 0
    assert 0 < result.draft_cost < 1
    assert result.formula >= result.predicted * min(result.verify_cost, 1.0) * 0.99
    assert result.decisions == {}
    assert result.predicted == pytest.approx(
        formula_tokens(stats) / (result.verify_cost + result.draft_cost)
    )


def test_decisions_are_those_of_the_measured_runs(tiny_model_dir, reference: LLM) -> None:
    cell = Cell("chat", 2, temperature=1.0)
    with make_llm(tiny_model_dir("llama"), speculative={"method": "auto"}) as llm:
        result = measure_cell(reference, llm, cell, requests_of(2), repeats=2)
        assert sum(result.decisions.values()) <= 2 * 7
        assert sum(result.decisions.values()) > 0
        assert llm.engine.cache.pool.num_used == 0


def test_the_formula_counts_passes_without_guesses() -> None:
    stats = DraftStats()
    assert formula_tokens(stats) == 1.0
    stats.num_plain_passes = 3
    for accepted in (2, 0, 1):
        stats.add(2, accepted, accepted + 1)
    assert stats.alpha == 3 / 5
    expected = (3 * expected_tokens(0.6, 2) + 3) / 6
    assert formula_tokens(stats) == pytest.approx(expected)


def test_only_decode_steps_count(reference: LLM) -> None:
    from infopt.bench.closed import run_closed_loop

    result = run_closed_loop(reference, requests_of(4), concurrency=2)
    steps = decode_steps(result)
    assert 0 < len(steps) < len(result.step_log)
    seconds = sum(s.duration_s for s in steps)
    tokens = sum(s.num_decode_tokens for s in steps)
    assert decode_rate(steps) == pytest.approx(tokens / seconds)
    with pytest.raises(MeasurementError, match="nothing but decode"):
        decode_rate([])


def test_requests_that_do_not_fit_are_told(reference: LLM) -> None:
    big = [WorkloadRequest("big", 0.0, [5] * 250, 20)]
    with pytest.raises(MeasurementError, match="failed"):
        measure_cell(reference, reference, Cell("edit", 1), big, repeats=1)


def test_a_report_names_wins_losses_and_misses(reference: LLM, guessing: LLM) -> None:
    cells = make_cells(["edit"], [1, 2], [0.0, 1.0])
    assert [(c.batch, c.temperature) for c in cells] == [(1, 0), (2, 0), (1, 1), (2, 1)]
    pools = make_pools(reference, cells, {"edit": WORKLOAD})
    assert set(pools) == {("edit", 0.0), ("edit", 1.0)}
    result = measure_cell(reference, guessing, cells[0], requests_of(2), repeats=2)
    report = summarize({"ngram": [result]})["ngram"]
    assert report["undecided"] == ["edit, 1 at once, temperature 0"]
    assert (report["better"], report["worse"]) == ([], [])
    assert bool(report["far_from_formula"]) != near_formula(result)
    assert report["cells"][0]["cell"]["workload"] == "edit"
