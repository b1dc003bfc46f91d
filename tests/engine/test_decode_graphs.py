"""Decode steps replayed from captures give the bits of steps that were not.

A CPU has no graphs, so two imitations stand in: `Rerun` calls the captured function again, which
proves buckets, padding and static inputs on any kernels; `Tape` records the operations of PyTorch
and repeats exactly those, which also proves that nothing Python decided belongs to one step alone.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from infopt import LLM, SamplingParams
from infopt.engine.decode_graphs import DecodeGraphs, GraphLimits, Step
from infopt.engine.static_inputs import InputShape
from infopt.ops import ForwardContext, GroupContext

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
Logits = dict[tuple[int, int], torch.Tensor]


class Rerun:
    """Imitates a graph: a replay calls the captured function again."""

    def __init__(self) -> None:
        self.num_captures = 0

    def capture(self, step: Step) -> Step:
        self.num_captures += 1
        step()
        return step


class Tape(Rerun):
    """Imitates a graph: a replay repeats the recorded operations on the recorded tensors."""

    def capture(self, step: Step) -> Step:
        self.num_captures += 1
        step()
        with _Recorder() as recorder:
            result = step()

        def replay() -> torch.Tensor:
            for function, args, kwargs, outputs in recorder.calls:
                again = function(*args, **kwargs)
                for old, new in zip(tree_leaves(outputs), tree_leaves(again), strict=True):
                    if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                        old.copy_(new)
            return result

        return replay


class _Recorder(TorchDispatchMode):
    """Notes every operation, and refuses what a CUDA graph could not hold."""

    FORBIDDEN = ("aten::item", "aten::_local_scalar_dense", "aten::lift_fresh", "aten::nonzero")

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        if func._schema.name in self.FORBIDDEN:
            raise RuntimeError(f"{func._schema.name} waits for the device\nand more lines")
        outputs = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, outputs))
        return outputs


def use_graphs(llm: LLM, backend: Rerun) -> DecodeGraphs:
    """Let an engine on a CPU replay its decode steps."""
    runner = llm.engine.runner
    limits = GraphLimits.of(runner.layout, llm.config.max_num_seqs, llm.stats()["max_model_len"])
    runner.graphs = DecodeGraphs(runner.compute, backend, limits, runner.device)
    return runner.graphs


def prompts_of(lengths: list[int], seed: int = 5) -> list[list[int]]:
    """Random prompts; every third begins like the one before it."""
    rng = random.Random(seed)
    prompts: list[list[int]] = []
    for i, length in enumerate(lengths):
        ids = rng.choices(range(4, 320), k=length)
        if i % 3 == 2:
            shared = prompts[-1][: length // 2]
            ids[: len(shared)] = shared
        prompts.append(ids)
    return prompts


def serve(
    folder: Path, graphs: Rerun | None, prompts: list[list[int]], /, **options: Any
) -> tuple[Logits, dict[str, Any], int]:
    """Serve requests that arrive one every other step.

    Returns:
        Logits by (request, position), statistics, and the number of steps that could be replayed.
    """
    found: Logits = {}
    config: dict[str, Any] = {"dtype": "float32", "check_integrity": True, "max_num_seqs": 11}
    with LLM(str(folder), **(config | options)) as llm:
        if graphs is not None:
            use_graphs(llm, graphs)
        engine = llm.engine

        def keep(sequence: Any, row: torch.Tensor) -> None:
            found[int(sequence.request_id), len(sequence.token_ids)] = row.clone()

        engine.logit_observer = keep
        engine.step_log = []
        pending = list(enumerate(prompts))
        while pending or engine.has_unfinished:
            if pending:
                request_id, prompt = pending.pop(0)
                params = SamplingParams(
                    temperature=0, max_tokens=20 + 5 * (request_id % 7), ignore_eos=True
                )
                engine.add_request(str(request_id), prompt, params)
            for _ in range(2):
                engine.step()
        steps = engine.step_log
        single = [s for s in steps if s.num_tokens == s.num_seqs + s.num_padding_tokens]
        return found, llm.stats(), sum(s.num_tokens <= llm.config.max_num_seqs for s in single)


def assert_same(got: Logits, expected: Logits) -> None:
    assert got.keys() == expected.keys()
    different = [key for key in expected if not torch.equal(got[key], expected[key])]
    assert not different, f"{len(different)} of {len(expected)} rows differ: {different[:3]}"


LENGTHS = [1, 2, 5, 15, 16, 17, 30, 33, 40, 47, 64, 70, 90, 100, 120, 130]
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "chunks": {"max_num_batched_tokens": 16},
    "no-prefix-cache": {"enable_prefix_caching": False},
    "recompute": {"num_kv_pages": 14},
    "swap": {"num_kv_pages": 14, "preemption": "swap"},
    "static-padded": {"scheduling": "static_padded", "max_num_seqs": 4},
    "page-4": {"block_size": 4},
}


@pytest.fixture(scope="module")
def expected(tiny_model_dir: Callable[..., Path]) -> Callable[..., tuple[Path, Logits]]:
    """The logits without graphs, once per family and setting."""
    known: dict[str, tuple[Path, Logits]] = {}

    def find(family: str, setting: str) -> tuple[Path, Logits]:
        key = f"{family} {setting}"
        if key not in known:
            folder = tiny_model_dir(family)
            known[key] = folder, serve(folder, None, prompts_of(LENGTHS), **options(key))[0]
        return known[key]

    return find


def options(key: str) -> dict[str, Any]:
    """Settings of a family: pages behind windows return, so only small pools run full."""
    family, setting = key.split()
    chosen = dict(SETTINGS[setting])
    if family == "gemma3_text" and "num_kv_pages" in chosen:
        chosen |= {"num_kv_pages": 24, "max_num_batched_tokens": 32}
    return chosen


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_replayed_steps_have_the_same_bits(expected, family: str, setting: str) -> None:
    folder, logits = expected(family, setting)
    chosen = options(f"{family} {setting}")
    got, stats, num_single = serve(folder, Rerun(), prompts_of(LENGTHS), **chosen)
    assert_same(got, logits)
    graphs = stats["cuda_graphs"]
    assert graphs["num_replays"] == sum(graphs["buckets"].values()) == num_single > 0
    assert graphs["state"] == "on"
    assert (stats["preemptions"] > 0) == (setting in ("recompute", "swap"))
    assert stats["pages"]["used"] == 0
    rows = {int(name.split()[0]) for name in graphs["buckets"]}
    assert rows <= {1, 2, 4, 8, 11}
    assert len(rows) > 1


@pytest.mark.parametrize("setting", ["plain", "recompute"])
def test_repeating_the_recorded_operations_is_enough(expected, setting: str) -> None:
    """Pins: a length, a number of tiles or a table of the captured step used for later ones."""
    folder, _ = expected("llama", setting)
    chosen = SETTINGS[setting] | {"backend": "reference", "max_num_seqs": 4}
    prompts = prompts_of(LENGTHS[:9])
    logits, _, _ = serve(folder, None, prompts, **chosen)
    backend = Tape()
    got, stats, _ = serve(folder, backend, prompts, **chosen)
    assert_same(got, logits)
    assert stats["cuda_graphs"]["state"] == "on"
    assert stats["cuda_graphs"]["num_replays"] > 3 * backend.num_captures
    assert backend.num_captures == len(stats["cuda_graphs"]["buckets"])


def test_longer_contexts_take_wider_buckets(tiny_model_dir: Callable[..., Path]) -> None:
    folder = tiny_model_dir("llama", max_position_embeddings=2048)
    prompts = prompts_of([505, 1020, 3])
    common: dict[str, Any] = {"max_num_batched_tokens": 600, "block_size": 16}
    logits, _, _ = serve(folder, None, prompts, **common)
    got, stats, _ = serve(folder, Rerun(), prompts, **common)
    assert_same(got, logits)
    pages = {int(name.split()[3]) for name in stats["cuda_graphs"]["buckets"]}
    assert pages == {32, 64, 128}


def test_choices_of_experts_come_out_of_replayed_steps(tiny_model_dir: Callable[..., Path]) -> None:
    """Padding rows of a bucket are no load, and buckets captured without counting are made anew."""
    folder = tiny_model_dir("mixtral")
    common: dict[str, Any] = {"expert_stats": True, "backend": "reference", "max_num_seqs": 4}
    logits, expected, _ = serve(folder, None, prompts_of(LENGTHS[:9]), **common)
    got, stats, _ = serve(folder, Rerun(), prompts_of(LENGTHS[:9]), **common)
    assert_same(got, logits)
    assert stats["cuda_graphs"]["num_replays"] > 0
    assert stats["experts"] == expected["experts"]
    assert sum(stats["experts"]["layers"][0]["decode_load"]) > 0


def test_a_bucket_without_choices_of_experts_is_captured_again(
    tiny_model_dir: Callable[..., Path],
) -> None:
    options: dict[str, Any] = {"dtype": "float32", "enable_prefix_caching": False}
    with LLM(str(tiny_model_dir("mixtral")), expert_stats=True, **options) as llm:
        backend = Rerun()
        use_graphs(llm, backend)
        llm.logits([7])
        assert backend.num_captures == 1
        llm.generate([[5]], GREEDY, use_tqdm=False)
        assert backend.num_captures == 2
        assert llm.stats()["experts"]["decode_tokens"] == 11


@pytest.fixture
def llm(tiny_model_dir: Callable[..., Path]) -> Iterator[LLM]:
    with LLM(str(tiny_model_dir("llama")), dtype="float32", max_num_seqs=8) as llm:
        yield llm


def test_steps_with_chunks_are_not_replayed(llm: LLM) -> None:
    graphs = use_graphs(llm, Rerun())
    llm.generate([[5, 6, 7]], SamplingParams(max_tokens=1, ignore_eos=True), use_tqdm=False)
    assert graphs.describe()["num_replays"] == 0
    llm.generate([[5, 6, 7]], SamplingParams(max_tokens=5, ignore_eos=True), use_tqdm=False)
    assert graphs.describe()["buckets"] == {"1 rows x 32 pages": 4}


def test_a_bucket_is_captured_once(llm: LLM) -> None:
    backend = Rerun()
    use_graphs(llm, backend)
    for _ in range(3):
        llm.generate(prompts_of([3, 4, 5]), GREEDY, use_tqdm=False)
    assert backend.num_captures == 1


def test_a_failed_capture_is_announced_once_and_recorded(
    tiny_model_dir: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    """The reference attention of window layers reads a position, which no graph can."""
    caplog.set_level(logging.WARNING)
    folder, prompts = tiny_model_dir("gemma3_text"), prompts_of([5, 40, 60])
    logits, _, _ = serve(folder, None, prompts, backend="reference")
    backend = Tape()
    got, stats, _ = serve(folder, backend, prompts, backend="reference")
    assert_same(got, logits)
    assert backend.num_captures == 1
    graphs = stats["cuda_graphs"]
    assert (graphs["state"], graphs["num_replays"], graphs["buckets"]) == ("failed", 0, {})
    assert graphs["reason"].endswith("aten::item waits for the device")
    warnings = [r.message for r in caplog.records if "kernel by kernel" in r.message]
    assert len(warnings) == 1
    assert graphs["reason"] in warnings[0]


def test_a_fault_of_the_model_is_not_taken_for_a_failed_capture(llm: LLM) -> None:
    class Broken(Rerun):
        def capture(self, step: Step) -> Step:
            raise ValueError("a wrong shape")

    use_graphs(llm, Broken())
    with pytest.raises(ValueError, match="a wrong shape"):
        llm.generate([[5, 6]], GREEDY, use_tqdm=False)


def test_a_cpu_says_that_it_has_no_graphs(llm: LLM, tiny_model_dir: Callable[..., Path]) -> None:
    off = {"state": "off", "num_replays": 0, "buckets": {}}
    assert llm.stats()["cuda_graphs"] == off | {"reason": "a cpu has none"}
    with LLM(str(tiny_model_dir("llama")), cuda_graphs="off") as other:
        assert other.stats()["cuda_graphs"] == off | {"reason": "cuda_graphs is off"}


LIMITS = GraphLimits(max_rows=50, max_context=3000, block_size=16, windows=[None])


@pytest.mark.parametrize(
    ("num_rows", "num_pages", "expected_shape"),
    [
        (1, 1, (1, 32)),
        (2, 32, (2, 32)),
        (3, 33, (4, 64)),
        (5, 64, (8, 64)),
        (8, 65, (8, 128)),
        (9, 1, (16, 32)),
        (48, 1, (48, 32)),
        (49, 129, (50, 188)),
        (50, 188, (50, 188)),
        (51, 1, None),
        (1, 189, None),
    ],
)
def test_the_smallest_bucket_that_fits(num_rows: int, num_pages: int, expected_shape: Any) -> None:
    assert LIMITS.shape_for(num_rows, num_pages) == expected_shape


def test_every_bucket_holds_its_step_and_fits_the_largest() -> None:
    for num_rows in range(1, 51):
        for num_pages in range(1, 189):
            shape = LIMITS.shape_for(num_rows, num_pages)
            assert shape is not None
            assert num_rows <= shape.rows <= LIMITS.largest.rows
            assert num_pages <= shape.pages <= LIMITS.largest.pages
            assert shape.rows < num_rows + 8
            assert shape.pages <= max(2 * num_pages, 32)


@pytest.mark.parametrize("rows", [[0, 1, 2], [2], []])
def test_only_the_rows_that_were_asked_for_come_back(rows: list[int]) -> None:
    positions = torch.tensor([7, 8, 9])
    ctx = ForwardContext(
        input_ids=positions,
        positions=positions,
        query_starts=[0, 1, 2, 3],
        context_lens=[8, 9, 10],
        num_decodes=3,
        groups=[GroupContext(torch.ones((3, 1), dtype=torch.int32), positions)],
        logit_rows=torch.tensor(rows, dtype=torch.int64),
    )
    graphs = DecodeGraphs(
        lambda c: c.positions.index_select(0, c.logit_rows), Rerun(), LIMITS, torch.device("cpu")
    )
    got = graphs.run(ctx)
    assert got is not None
    assert got.tolist() == [7 + row for row in rows]


def test_a_context_shorter_than_the_smallest_bucket() -> None:
    limits = GraphLimits(max_rows=3, max_context=100, block_size=16, windows=[None])
    assert limits.shape_for(3, 7) == limits.largest == InputShape(3, 7)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_cuda_graphs_have_the_bits_of_single_launches(
    tiny_model_dir: Callable[..., Path], family: str
) -> None:
    folder, prompts = tiny_model_dir(family), prompts_of(LENGTHS)
    logits, stats, _ = serve(folder, None, prompts, cuda_graphs="off")
    assert stats["cuda_graphs"]["state"] == "off"
    got, stats, num_single = serve(folder, None, prompts, cuda_graphs="auto")
    assert stats["cuda_graphs"]["state"] == "on", stats["cuda_graphs"]["reason"]
    assert stats["cuda_graphs"]["num_replays"] == num_single
    assert_same(got, logits)
