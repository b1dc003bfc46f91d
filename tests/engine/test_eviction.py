"""Evicting rows in the engine: which go, what remains true without them, and whom it concerns."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from infopt import LLM, SamplingParams
from infopt.cache.eviction import LayerRows, read_eviction, select_rows
from infopt.engine.eviction import Evictor
from infopt.errors import CapacityError, ConfigError, InfoptError, SamplingParamsError
from infopt.outputs import RequestOutput

GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, logprobs=3)
SMALL = {
    "streaming": {},
    "knorm": {},
    "random": {"seed": 3},
    "tova": {},
    "h2o": {},
    "snapkv": {"window": 8, "kernel": 3},
    "expected_attention": {"window": 30, "future": 16},
}
Kept = dict[tuple[str, int], list[Any]]


def ids(count: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(4, 320), k=count)


def evicting(method: str, params: SamplingParams = GREEDY, **options: Any) -> SamplingParams:
    if not {"budget", "budget_tokens"} & set(options):
        options["budget"] = 0.5
    return params.replace(kv_eviction={"method": method, **SMALL.get(method, {}), **options})


def facts(outputs: list[RequestOutput]) -> list[Any]:
    return [(c.token_ids, c.logprobs, c.finish_reason) for o in outputs for c in o.outputs]


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Kept:
    """True positions that evictions left, by request and group, in order of time."""
    found: Kept = {}
    real = Evictor._choose

    def choose(self: Evictor, sequence: Any, state: Any, group: int) -> torch.Tensor:
        rows = real(self, sequence, state, group)
        name = f"{sequence.request_id}.{sequence.index}"
        found.setdefault((name, group), []).append(state.positions[group].tolist())
        return rows

    monkeypatch.setattr(Evictor, "_choose", choose)
    return found


def by_request(kept: Kept) -> list[Any]:
    """Return what was kept, in order of arrival, and forget it."""
    found = [kept[key] for key in sorted(kept, key=lambda key: int(key[0][4:].split(".")[0]))]
    kept.clear()
    return found


@pytest.fixture
def make(make_llm: Callable[..., LLM]) -> Callable[..., LLM]:
    """Factory of engines that may swap."""
    return lambda *args, **options: make_llm(*args, **({"preemption": "swap"} | options))


def run(llm: LLM, prompts: Any, params: Any) -> list[RequestOutput]:
    return llm.generate(prompts, params, use_tqdm=False)


@pytest.mark.parametrize("method", SMALL)
def test_a_budget_that_holds_everything_changes_no_bit(
    make: Callable[..., LLM], kept: Kept, method: str
) -> None:
    prompts = [ids(40), ids(33, 1)]
    expected = facts(run(make(), prompts, GREEDY))
    assert facts(run(make(), prompts, evicting(method, budget=1.0, decode=False))) == expected
    llm = make()
    assert facts(run(llm, prompts, evicting(method, budget_tokens=64))) == expected
    assert not kept and llm.stats()["kv_eviction"]["freed_bytes"] == 0


@pytest.mark.parametrize("count", [3, 7, 8, 9])
def test_prompts_within_the_window_are_left_alone(
    make: Callable[..., LLM], kept: Kept, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Pins: a context about as long as the window (8 here) gave nonsense. The log says so."""
    caplog.set_level("DEBUG", "infopt.engine.eviction_request")
    prompt = ids(count)
    expected = facts(run(make(), prompt, GREEDY))
    found = facts(run(make(), prompt, evicting("snapkv")))
    assert (found == expected) == (count <= 8)
    assert bool(kept) == (count > 8)
    said = f"nothing will go of a prompt of {count} tokens" in caplog.text
    assert said == (count <= 8)


@pytest.mark.parametrize("method", SMALL)
def test_the_same_rows_go_whatever_shares_the_batch(
    make: Callable[..., LLM], kept: Kept, method: str
) -> None:
    """Chunks, company, cached prefixes and static batches change neither rows nor bits."""
    prompts = [ids(41), ids(60, 1), ids(17, 2)]
    params = evicting(method, budget_tokens=14, protected=[[3, 5]])
    expected, positions = [], []
    for prompt in prompts:
        expected += facts(run(make(enable_prefix_caching=False), prompt, params))
        positions += by_request(kept)
    for options in (
        {"max_num_batched_tokens": 7, "max_num_seqs": 3},
        {"max_num_batched_tokens": 64},
        {"scheduling": "static", "max_num_seqs": 2},
        {"scheduling": "static_padded", "max_num_seqs": 3},
    ):
        llm = make(**options)
        assert facts(run(llm, prompts, params)) == expected
        assert by_request(kept) == positions
        again = run(llm, prompts, params)
        assert facts(again) == expected
        assert by_request(kept) == positions
        if method not in ("h2o", "expected_attention"):  # these must read the whole prompt
            assert any(output.num_cached_tokens for output in again)
    assert all({3, 4} <= set(head) for rounds in positions for r in rounds for head in r[0])


def reference_rows(
    folder: Any, tokens: list[int], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> tuple[Any, list[LayerRows]]:
    """What transformers computes for a prompt, in float64, as presses see it."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    module = importlib.import_module(type(model).__module__)
    config, rotated = model.config, []
    real = module.apply_rotary_pos_emb

    def spy(q: torch.Tensor, k: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        rotated.append(real(q, k, *args, **kwargs))
        return rotated[-1]

    monkeypatch.setattr(module, "apply_rotary_pos_emb", spy)
    with torch.no_grad():
        past = model(torch.tensor([tokens]), use_cache=True).past_key_values
    chosen = read_eviction(options)
    assert chosen is not None
    rates = 1.0 / config.rope_parameters["rope_theta"] ** (
        torch.arange(0, config.head_dim, 2).double() / config.head_dim
    )
    angles = torch.arange(600)[:, None] * rates
    count = len(tokens)
    num_queries = min(chosen.press.query_window or 0, count)
    layers = []
    for layer, (q, k) in enumerate(rotated):
        at = torch.arange(count - num_queries, count)
        share = config.num_attention_heads // config.num_key_value_heads
        weights = (q[0] @ k[0].repeat_interleave(share, 0).mT) * config.head_dim**-0.5
        weights = weights.masked_fill(torch.ones(count, count).triu(1).bool(), -torch.inf)
        weights = weights.softmax(-1).unflatten(0, (-1, share)).mean(1)
        layers.append(
            LayerRows(
                layer=layer,
                num_kept=chosen.budgets(count, 1)[0],
                keys=k[0],
                values=past.layers[layer].values[0],
                positions=torch.arange(count).expand(k.shape[1], -1),
                queries=q[0][:, count - num_queries :],
                query_rows=at,
                query_positions=at,
                attention=weights.sum(1) / torch.arange(count, 0, -1),
                scale=config.head_dim**-0.5,
                softcap=None,
                next_position=count,
                cos=angles.cos(),
                sin=angles.sin(),
            )
        )
    return chosen, layers


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("method", [m for m in SMALL if m != "random"])
def test_kept_rows_are_those_of_transformers_in_float64(
    make: Callable[..., LLM],
    kept: Kept,
    tiny_model_dir: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    family: str,
    method: str,
) -> None:
    prompt = ids(83, 5)
    params = evicting(method, budget_tokens=30)
    llm = make(family, max_num_batched_tokens=32, max_num_seqs=2)
    run(llm, prompt, params)
    monkeypatch.undo()
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)  # presses stay in it
    options = dict(params.kv_eviction or {})
    chosen, layers = reference_rows(tiny_model_dir(family), prompt, options, monkeypatch)
    ((first, *_),) = by_request(kept)
    num_ties = 0
    for rows, found in zip(layers, first, strict=True):
        scores = chosen.press.score(rows)
        expected = select_rows(scores, 30)
        for head, positions in enumerate(found):
            wanted = expected[head].tolist()
            last = scores[head, wanted].min()
            for row in {*wanted} ^ {*positions}:  # only where float32 cannot tell
                num_ties += 1
                assert abs(scores[head, row] - last) <= 1e-5 * abs(last)
    assert num_ties <= 2


@pytest.mark.parametrize("decode", [False, True])
def test_tokens_see_what_was_kept_and_nothing_else(
    make: Callable[..., LLM],
    kept: Kept,
    tiny_model_dir: Callable[..., Any],
    decode: bool,
) -> None:
    """As a full model whose mask hides evicted positions from later tokens.

    Rotations and the positions of new tokens are right, or the log-probabilities would differ.
    """
    from transformers import AutoModelForCausalLM

    prompt = ids(50, 2)
    params = evicting("streaming", budget_tokens=12, interval_pages=2, decode=decode, sinks=3)
    output = run(make(), prompt, params.replace(max_tokens=30))[0].outputs[0]
    (rounds,) = kept.values()
    assert len(rounds) == (1 + 3 if decode else 1)
    tokens = [*prompt, *output.token_ids]
    count = len(tokens) - 1
    visible = torch.ones(count, count).tril().bool()
    ends = [50, *range(58, count, 8)] if decode else [50]
    for end, positions in zip(ends, rounds, strict=False):
        expected = [0, 1, 2, *range(end - 9, end)]
        assert positions == [[expected] * 2] * 3
        gone = [p for p in range(end) if p not in expected]
        visible[end:, gone] = False
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir("llama"), dtype=torch.float32)
    mask = torch.zeros(count, count).masked_fill(~visible, torch.finfo(torch.float32).min)
    with torch.no_grad():
        logits = model(torch.tensor([tokens[:-1]]), attention_mask=mask[None, None]).logits[0]
    expected = logits[len(prompt) - 1 :].log_softmax(-1)
    assert output.logprobs is not None
    for row, token_id, entry in zip(expected, output.token_ids, output.logprobs, strict=True):
        assert abs(float(row[token_id]) - entry[token_id].logprob) < 1e-4


@pytest.mark.parametrize("method", ["streaming", "h2o", "tova"])
def test_decoding_never_holds_more_than_budget_and_interval(
    make: Callable[..., LLM], kept: Kept, method: str
) -> None:
    llm = make(num_kv_pages=60)
    params = evicting(method, budget_tokens=10, interval_pages=3)
    llm.engine.add_request("a", ids(30), params.replace(max_tokens=100))
    most = 0
    while llm.engine.has_unfinished:
        llm.engine.step()
        for sequence in llm.engine.scheduler.running:
            if sequence.num_output_tokens > 1:
                most = max(most, sequence.cache.num_rows[0])
                assert sequence.cache.num_tokens == len(sequence.token_ids) - 1
    assert most == 10 + 12 - 1, "an eviction comes as soon as the limit is reached"
    assert len(kept["a.0", 0]) == 1 + (99 - 12 + 12) // 12


def test_window_layers_are_left_to_their_windows(make: Callable[..., LLM], kept: Kept) -> None:
    """Gemma-like: two window layers, one full one."""
    llm = make("gemma3_text")
    groups = [group.window for group in llm.engine.cache.layout.groups]
    run(llm, ids(60), evicting("snapkv"))
    assert [group for _, group in kept] == [groups.index(None)]


def test_a_pyramid_gives_early_layers_more(make: Callable[..., LLM], kept: Kept) -> None:
    options = {"method": "pyramid", "base": "knorm", "budget_tokens": 20, "steepness": 4.0}
    llm = make(kv_eviction=options)
    assert [g.layers for g in llm.engine.cache.layout.groups] == [(0,), (1,), (2,)]
    run(llm, [ids(60), ids(45, 1)], GREEDY)
    sizes = {key: len(rounds[0][0][0]) for key, rounds in kept.items()}
    assert sorted(sizes.values(), reverse=True) == [35, 35, 20, 20, 5, 5]
    assert llm.stats()["kv_eviction"]["freed_bytes"] > 0


def test_a_pyramid_needs_an_engine_of_its_own(make: Callable[..., LLM]) -> None:
    with pytest.raises(SamplingParamsError, match="Start the engine with"):
        run(make(), ids(9), evicting("pyramid"))


def test_freed_bytes_are_the_pools_own_count(make: Callable[..., LLM]) -> None:
    llm = make()
    engine, pool = llm.engine, llm.engine.cache.pool
    engine.add_request("a", ids(80), evicting("knorm", budget_tokens=17))
    real, seen = engine.evictor.after_step, []

    def watch(*args: Any) -> None:
        before = pool.num_used
        real(*args)
        seen.append(before - pool.num_used)

    engine.evictor.after_step = watch  # type: ignore[method-assign]
    outputs = []
    while engine.has_unfinished:
        outputs += engine.step()
    assert [n for n in seen if n] == [20 - 5]
    page = llm.stats()["memory"]["page_bytes"]
    assert outputs[-1].metrics.kv_freed_bytes == 15 * page
    assert llm.stats()["kv_eviction"] == {
        "evictions": 1,
        "freed_bytes": 15 * page,
        "steps_that_kept_queries": 0,
    }


@pytest.mark.parametrize("method", ["snapkv", "tova", "h2o", "expected_attention"])
def test_steps_whose_queries_are_kept_are_counted(make: Callable[..., LLM], method: str) -> None:
    llm = make(max_num_batched_tokens=32)
    run(llm, ids(70), evicting(method, GREEDY.replace(max_tokens=3)))
    expected = {"snapkv": 2, "tova": 1, "h2o": 3 + 2, "expected_attention": 2}
    assert llm.stats()["kv_eviction"]["steps_that_kept_queries"] == expected[method]


def test_completions_of_one_prompt_keep_the_same_rows(make: Callable[..., LLM], kept: Kept) -> None:
    """The prompt is computed once, and the others find its pages after the first eviction."""
    params = evicting("snapkv", GREEDY.replace(n=3, temperature=1.0, seed=4))
    expected = facts(run(make(enable_prefix_caching=False), ids(61), params))
    positions = list(kept.values())
    assert positions[0] == positions[1] == positions[2]
    kept.clear()
    llm = make()
    assert facts(run(llm, ids(61), params)) == expected
    assert list(kept.values()) == positions
    assert llm.engine.cache.pool.num_used == 0


def test_prompt_log_probabilities_come_before_the_eviction(make: Callable[..., LLM]) -> None:
    params = GREEDY.replace(prompt_logprobs=2)
    expected = run(make(), ids(40), params)[0].prompt_logprobs
    assert run(make(), ids(40), evicting("knorm", params))[0].prompt_logprobs == expected


def test_scores_and_logits_are_of_the_whole_text(make: Callable[..., LLM]) -> None:
    plain, small = make(), make(kv_eviction={"method": "streaming", "budget_tokens": 8})
    tokens = ids(50)
    assert small.score([tokens], use_tqdm=False) == plain.score([tokens], use_tqdm=False)
    assert torch.equal(small.logits(tokens), plain.logits(tokens))


def test_requests_choose_against_the_engine(make: Callable[..., LLM], kept: Kept) -> None:
    llm = make(kv_eviction={"method": "streaming", "budget_tokens": 8, "decode": False})
    prompts = [ids(30), ids(30, 1), ids(30, 2)]
    off = GREEDY.replace(kv_eviction={"method": "none"})
    own = evicting("knorm", budget_tokens=11)
    found = facts(run(llm, prompts, [GREEDY, off, own]))
    sizes = [len(rounds[0][0][0]) for rounds in kept.values()]
    assert sizes == [8, 11]
    assert found[1] == facts(run(make(), prompts[1], GREEDY))[0]


def test_the_same_prompt_without_eviction_is_whole_again(make: Callable[..., LLM]) -> None:
    """Pages found later hold what they held before rows went."""
    prompt = ids(60)
    expected = facts(run(make(), prompt, GREEDY))
    for pages in (400, 23):  # plenty, and hardly any
        llm = make(num_kv_pages=pages)
        run(llm, prompt, evicting("knorm", budget=0.25))
        assert facts(run(llm, prompt, GREEDY)) == expected


def test_swapped_out_sequences_go_on_as_if_alone(make: Callable[..., LLM], kept: Kept) -> None:
    """Evicted ones are swapped, never computed again; others may be either."""
    prompts = [ids(36 + 3 * i, i) for i in range(6)]
    params = [evicting(m, budget_tokens=20) for m in ("streaming", "tova", "h2o", "knorm")]
    params = [p.replace(max_tokens=48) for p in (*params, GREEDY, evicting("snapkv"))]
    expected, positions = [], []
    for prompt, p in zip(prompts, params, strict=True):
        expected += facts(run(make(enable_prefix_caching=False), prompt, p))
        positions += by_request(kept)
    llm = make(num_kv_pages=32)
    assert facts(run(llm, prompts, params)) == expected
    assert by_request(kept) == positions
    assert llm.stats()["preemptions"] >= 1
    assert llm.engine.cache.pool.num_used == 0


@pytest.mark.parametrize("method", ["streaming", "h2o", "tova", "snapkv"])
@pytest.mark.parametrize("drafter", ["ngram", "suffix"])
def test_guesses_change_neither_rows_nor_text(
    make: Callable[..., LLM], kept: Kept, method: str, drafter: str
) -> None:
    """A step never guesses beyond an eviction, and rejected rows go back."""
    base = ids(9)
    prompts = [[*base, *base, *base, 7], [*ids(5, 1)] * 7]
    params = evicting(method, GREEDY.replace(max_tokens=60), budget_tokens=16, interval_pages=2)
    expected = facts(run(make(), prompts, params))
    positions = list(kept.values())
    kept.clear()
    options = {"ngram": {"prompt_lookup_min": 1}, "suffix": {"min_match": 1}}[drafter]
    llm = make(speculative={"method": drafter, "num_speculative_tokens": 6, **options})
    assert facts(run(llm, prompts, params)) == expected
    assert list(kept.values()) == positions
    assert llm.stats()["speculative"]["accepted_tokens"] > 0


def test_aborted_requests_give_everything_back(make: Callable[..., LLM]) -> None:
    """In every state: half a prompt, evicted, swapped out."""
    llm = make(num_kv_pages=38, max_num_batched_tokens=24, max_num_seqs=8)
    engine = llm.engine
    for turn in range(1, 60, 4):
        for i in range(6):
            engine.add_request(str(i), ids(36, i), evicting("tova", budget_tokens=20))
        for _ in range(turn):
            if engine.has_unfinished:
                engine.step()
        for i in range(6):
            engine.abort(str(i))
        while engine.has_unfinished:
            engine.step()
        assert engine.cache.pool.num_used == 0
        engine.scheduler.check_integrity()  # no room is kept for anybody


class BoomError(RuntimeError):
    """Raised by a failing step."""


def test_a_failed_step_ends_what_cannot_be_computed_again(make: Callable[..., LLM]) -> None:
    """Copies of a step that failed may not have been made: evicted rows are lost with them."""
    llm = make(num_kv_pages=38)
    engine, real = llm.engine, llm.engine.runner.store.swap_out
    failed = False

    def swap_out(moves: Any) -> None:
        nonlocal failed
        if moves and not failed:
            failed = True
            raise BoomError
        real(moves)

    engine.runner.store.swap_out = swap_out  # type: ignore[method-assign]
    for i in range(6):
        params = evicting("knorm", budget_tokens=20).replace(max_tokens=60)
        engine.add_request(str(i), ids(40, i), params)
    reasons: dict[str, Any] = {}
    while engine.has_unfinished:
        try:
            reasons |= {o.request_id: o.outputs[0].finish_reason for o in engine.step()}
        except BoomError:
            engine.scheduler.check_integrity()
    assert failed and set(reasons) == set("012345")
    assert set(reasons.values()) <= {"error", "length"} and "error" in reasons.values()
    assert engine.cache.pool.num_used == 0


@pytest.mark.parametrize(
    ("options", "request_options", "error", "words"),
    [
        ({"preemption": "recompute"}, {}, CapacityError, "preemption='swap'"),
        ({"swap_memory_gib": 0.00001}, {}, CapacityError, "host pages"),
        ({}, {"method": "snap"}, SamplingParamsError, "snapkv"),
        ({}, {"windw": 3}, SamplingParamsError, "Unknown option 'windw'"),
        ({}, {"budget": 2}, SamplingParamsError, "(0, 1]"),
    ],
)
def test_bad_requests_are_refused_before_anything_runs(
    make: Callable[..., LLM],
    options: dict[str, Any],
    request_options: dict[str, Any],
    error: type[InfoptError],
    words: str,
) -> None:
    llm = make(**options)
    asked = {"method": "knorm", "budget": 0.5, **request_options}
    with pytest.raises(error) as caught:
        run(llm, ids(60), GREEDY.replace(kv_eviction=asked))
    assert words in str(caught.value)
    assert not llm.engine.has_unfinished and not llm.engine.num_requests


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"preemption": "recompute"}, "preemption='swap'"),
        ({"kv_eviction": {"method": "knorm"}}, "exactly one"),
        ({"kv_eviction": "knorm"}, "mapping"),
        ({"kv_eviction": {"method": "knorm", "budget": 0.5, "protect": 3}}, "protected"),
    ],
)
def test_bad_engines_are_refused(
    make: Callable[..., LLM], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=None) as caught:
        make(**({"kv_eviction": {"method": "knorm", "budget": 0.5}} | options))
    assert words in str(caught.value)


def test_parameters_survive_copies_and_plain_data() -> None:
    import copy

    params = evicting("snapkv")
    again = SamplingParams.from_dict(params.to_dict())
    assert again == params == copy.deepcopy(params)
    with pytest.raises(SamplingParamsError, match="mapping"):
        SamplingParams(kv_eviction="snapkv")  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _few_threads() -> Iterator[None]:
    """Tiny models gain nothing from threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
