"""Counted choices of experts against a recount from what reached the experts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from infopt import LLM, SamplingParams
from infopt.engine.expert_counts import ExpertCounts
from infopt.engine.step_plan import ScheduledSequence, StepPlan
from infopt.errors import ConfigError
from infopt.models.config import ModelConfig
from infopt.moe.statistics import expert_statistics
from infopt.ops.mlp import SparseMlp

GREEDY = SamplingParams(temperature=0, max_tokens=14, ignore_eos=True)
PROMPTS = [list(range(5, 45)), [9, 8, 7], [*range(5, 38), 3, 2], [60] * 17]


class Recount:
    """Watches an engine and counts in plain Python, choice by choice.

    Attributes:
        load: Choices by (is decode, layer, expert).
        rows: Distinct experts of each layer and step, by (only decodes, rows).
        pairs: Layer, experts of a token, and experts of the token after it.
    """

    def __init__(self) -> None:
        self.load: Counter[tuple[bool, int, int]] = Counter()
        self.rows: dict[tuple[bool, int], list[int]] = {}
        self.pairs: list[tuple[int, list[int], list[int]]] = []
        self._known: dict[int, tuple[int, dict[int, list[int]]]] = {}

    def add(self, items: list[ScheduledSequence], ids: dict[int, list[list[int]]]) -> None:
        """Count a step from its plan and the choices of each layer, padding left out."""
        only_decodes = all(item.is_decode for item in items)
        num_rows = sum(item.num_tokens for item in items)
        for layer, rows in ids.items():
            assert len(rows) == num_rows
            touched = {expert for row in rows for expert in row}
            self.rows.setdefault((only_decodes, num_rows), []).append(len(touched))
            place = 0
            for item in items:
                for row in rows[place : place + item.num_tokens]:
                    self.load.update((item.is_decode, layer, expert) for expert in row)
                place += item.num_tokens
        known: dict[int, tuple[int, dict[int, list[int]]]] = {}
        place = 0
        for item in items:
            at, last = self._known.get(item.sequence.seq_id, (-2, {}))
            for offset in range(item.num_known_tokens):
                here = {layer: rows[place + offset] for layer, rows in ids.items()}
                if at == item.start + offset - 1:
                    self.pairs += [(layer, last[layer], row) for layer, row in here.items()]
                at, last = item.start + offset, here
            if not item.sequence.is_finished:
                known[item.sequence.seq_id] = at, last
            place += item.num_tokens
        self._known = known


@contextmanager
def recounted(llm: LLM) -> Iterator[Recount]:
    """Recount every step that the engine counts."""
    recount, engine, seen = Recount(), llm.engine, {}
    for index, layer in enumerate(engine.runner.model.layers):
        if isinstance(layer.mlp, SparseMlp):
            object.__setattr__(layer.mlp, "experts", Listener(layer.mlp.experts, seen, index))
    add_step = ExpertCounts.add_step

    def add(self: ExpertCounts, plan: StepPlan, ctx: Any) -> None:
        rows = {i: [row for row in ids.tolist() if row[0] >= 0] for i, ids in seen.items()}
        recount.add(plan.scheduled, rows)
        add_step(self, plan, ctx)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ExpertCounts, "add_step", add)
        yield recount


class Listener:
    """Stands for a layer's experts and keeps the last choices that reached them."""

    def __init__(self, experts: Any, seen: dict[int, torch.Tensor], index: int) -> None:
        self.experts, self.choice, self.seen, self.index = experts, experts.choice, seen, index

    def __call__(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        self.seen[self.index] = ids
        return self.experts(x, ids, weights)


SMALL_POOL = {"block_size": 4, "num_kv_pages": 22, "enable_prefix_caching": False}
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "chunks": {"max_num_batched_tokens": 8},
    "recompute": SMALL_POOL,
    "swap": SMALL_POOL | {"preemption": "swap"},
    "static-padded": {"scheduling": "static_padded"},
    "guesses": {"speculative": {"method": "ngram", "num_speculative_tokens": 3}},
}


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_counts_are_those_of_a_recount(
    tiny_model_dir: Callable[..., Path], family: str, setting: str
) -> None:
    options = {"max_num_seqs": 3, "expert_stats": True} | SETTINGS[setting]
    folder = str(tiny_model_dir(family))
    # Only layers that run op by op can be listened to.
    with LLM(folder, dtype="float32", backend="reference", **options) as llm:
        moe = llm.model_config.moe
        with recounted(llm) as expected:
            llm.generate(PROMPTS, GREEDY, use_tqdm=False)
            llm.generate(PROMPTS[:1], GREEDY, use_tqdm=False)  # finds its prefix
        counts = llm.engine.expert_counts
        stats = llm.stats()
    assert (stats["preemptions"] > 0) == (setting in ("recompute", "swap"))
    found = Counter(
        {
            (bool(phase), counts.layers[layer], expert): int(counts.load[phase, layer, expert])
            for phase, layer, expert in counts.load.nonzero().tolist()
        }
    )
    assert found == expected.load
    assert counts.load.sum((1, 2)).tolist() == [
        n * moe.top_k * len(counts.layers) for n in counts.num_tokens
    ]
    num_layers = len(counts.layers)
    for (only_decodes, rows), distinct in expected.rows.items():
        kept = counts.distinct[only_decodes][rows]
        assert kept.num_steps * num_layers == len(distinct)
        assert (kept.total, kept.most) == (sum(distinct), max(distinct))
        assert kept.most <= min(moe.num_experts, moe.top_k * rows)
    assert counts.num_pairs * num_layers == len(expected.pairs) > 0
    for place, layer in enumerate(counts.layers):
        pairs = [(old, new) for at, old, new in expected.pairs if at == layer]
        assert int(counts.same_first[place]) == sum(old[0] == new[0] for old, new in pairs)
        assert int(counts.repeated[place]) == sum(len({*old} & {*new}) for old, new in pairs)
        assert counts.first[place].sum() == len(pairs)


@pytest.mark.parametrize("family", ["mixtral", "qwen2_moe", "qwen3_moe"])
def test_all_layers_in_one_call_count_alike(
    tiny_model_dir: Callable[..., Path], family: str
) -> None:
    """Against the reference's own ops: scores of these models lie further apart than rounding."""
    found = []
    for backend in ("auto", "reference"):
        options: dict[str, Any] = {"dtype": "float32", "backend": backend, "max_num_seqs": 3}
        with LLM(str(tiny_model_dir(family)), expert_stats=True, **options) as llm:
            llm.generate(PROMPTS, GREEDY, use_tqdm=False)
            found.append((llm.stats()["experts"], llm.stats()["ops"]["layer_stack"]["backend"]))
    assert found[0][0] == found[1][0]
    assert [backend for _, backend in found] == ["cpu", "reference"]


def test_guesses_are_loads_but_no_neighbours(tiny_model_dir: Callable[..., Path]) -> None:
    """A wrong guess read its experts, and is no token of the sequence."""
    guesses = SETTINGS["guesses"]
    with LLM(str(tiny_model_dir("mixtral")), dtype="float32", expert_stats=True, **guesses) as llm:
        llm.generate([[7, 8] * 12], GREEDY.replace(max_tokens=40), use_tqdm=False)
        stats = llm.stats()
    drafted = stats["speculative"]
    assert drafted["accepted_tokens"] > 0
    computed = stats["generated_tokens"] - 1 - drafted["accepted_tokens"]
    assert stats["experts"]["decode_tokens"] == computed + drafted["proposed_tokens"]
    assert stats["experts"]["locality"]["pairs"] < stats["generated_tokens"] + 23


def run_padded(llm: LLM, counts: ExpertCounts, num_padding: int, token_ids: list[int]) -> Any:
    """Compute one prompt behind rows of padding; return the hidden states of its tokens."""
    engine = llm.engine
    sequence = engine.inputs.fork("padded", token_ids, SamplingParams(seed=0), 0, 0.0)[0]
    assert engine.cache.allocate(sequence.cache, len(token_ids))
    plan = StepPlan([ScheduledSequence(sequence, 0, len(token_ids))])
    plan.num_padding_tokens = num_padding
    ctx = engine.runner.build(plan, list(range(len(token_ids))))
    counts.prepare(ctx, engine.runner.device)
    hidden = engine.runner.hidden(ctx).clone()
    counts.add_step(plan, ctx)
    engine.cache.free(sequence.cache)
    return hidden


def test_padding_is_no_load(tiny_model_dir: Callable[..., Path]) -> None:
    """Pins: padding and warm-up tokens were counted as load of experts."""
    with LLM(str(tiny_model_dir("mixtral")), dtype="float32", expert_stats=True) as llm:
        counts = llm.engine.expert_counts
        assert counts.num_tokens == [0, 0]
        assert not counts.load.any()
        run_padded(llm, counts, 3, [5, 6, 7, 8, 9])
        stats = expert_statistics(counts)
    assert [sum(layer.load) for layer in stats.layers] == [10, 10, 10]  # not 16
    for layer in stats.layers:
        assert layer.imbalance == pytest.approx(max(layer.load) / (10 / 6))
    assert [entry.rows for entry in stats.distinct_by_rows_prefill] == [5]


def test_padding_changes_neither_statistics_nor_outputs(
    tiny_model_dir: Callable[..., Path],
) -> None:
    """Pins: padding on the left changed the balance statistic."""
    with LLM(str(tiny_model_dir("mixtral")), dtype="float32", expert_stats=True) as llm:
        found = []
        for num_padding in (0, 3, 50):
            counts = ExpertCounts(llm.model_config.moe)
            hidden = [run_padded(llm, counts, num_padding, ids) for ids in PROMPTS]
            found.append((torch.cat(hidden), expert_statistics(counts).to_dict()))
    for hidden, stats in found[1:]:
        assert torch.equal(hidden, found[0][0])
        assert stats == found[0][1]


def test_nothing_is_counted_unless_asked_for(tiny_model_dir: Callable[..., Path]) -> None:
    with LLM(str(tiny_model_dir("mixtral")), dtype="float32") as llm:
        llm.generate(PROMPTS[:1], GREEDY, use_tqdm=False)
        assert llm.engine.expert_counts is None
        assert llm.stats()["experts"] is None


def test_a_dense_model_has_nothing_to_count(tiny_model_dir: Callable[..., Path]) -> None:
    with LLM(str(tiny_model_dir("llama")), dtype="float32", expert_stats=True) as llm:
        llm.generate(PROMPTS[:1], GREEDY, use_tqdm=False)
        assert llm.stats()["experts"] is None


def test_outputs_do_not_depend_on_counting(tiny_model_dir: Callable[..., Path]) -> None:
    outputs = []
    for counting in (False, True):
        options: dict[str, Any] = {"dtype": "float32", "expert_stats": counting}
        with LLM(str(tiny_model_dir("olmoe")), **options) as llm:
            made = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
        outputs.append([output.outputs[0].token_ids for output in made])
    assert outputs[0] == outputs[1]


def test_a_reset_starts_at_zero(tiny_model_dir: Callable[..., Path]) -> None:
    with LLM(str(tiny_model_dir("mixtral")), dtype="float32", expert_stats=True) as llm:
        llm.generate(PROMPTS, GREEDY, use_tqdm=False)
        assert llm.stats()["experts"]["decode_tokens"] == len(PROMPTS) * 13
        llm.engine.reset_stats()
        stats = llm.stats()["experts"]
        assert stats["prefill_tokens"] == stats["decode_tokens"] == stats["locality"]["pairs"] == 0
        assert isinstance(llm.model_config, ModelConfig)


def test_transformers_models_refuse_to_count(family_dir: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigError, match="expert_stats=True is for models that run natively"):
        LLM(str(family_dir("deepseek_v3")), expert_stats=True)
