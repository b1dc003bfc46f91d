"""The engine on a small random model: faults of other servers that must not happen here."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from infopt import LLM, SamplingParams
from infopt.engine.clock import VirtualClock
from infopt.engine.engine import Engine
from infopt.errors import (
    CapacityError,
    InfoptError,
    PromptError,
    PromptTooLongError,
    QueueFullError,
    SamplingParamsError,
)
from infopt.outputs import RequestOutput

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
EOS = 1


def ids(count: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(4, 320), k=count)


def drain(engine: Engine, max_steps: int = 500) -> dict[str, RequestOutput]:
    """Step until idle; return the finished outputs, each of which must appear once."""
    done: dict[str, RequestOutput] = {}
    for _ in range(max_steps):
        if not engine.has_unfinished:
            break
        for output in engine.step():
            if output.finished:
                assert output.request_id not in done, "reported as finished twice"
                done[output.request_id] = output
    check_idle(engine)
    return done


def check_idle(engine: Engine) -> None:
    assert not engine.has_unfinished
    engine.scheduler.check_integrity()
    pool = engine.cache.pool
    assert pool.num_used == 0
    assert pool.num_free + pool.num_cached == pool.num_pages
    assert not engine._requests
    assert not engine._ended_early


def run(llm: LLM, prompts: list[list[int]], params: Any = GREEDY) -> list[RequestOutput]:
    outputs = llm.generate(prompts, params, use_tqdm=False)
    check_idle(llm.engine)
    return outputs


def tokens(outputs: list[RequestOutput]) -> list[list[int]]:
    return [completion.token_ids for output in outputs for completion in output.outputs]


def script(llm: LLM, monkeypatch: pytest.MonkeyPatch, text_or_ids: str | list[int]) -> list[int]:
    """Make the model say given tokens, whatever it reads, then EOS for ever."""
    said = text_or_ids
    if isinstance(said, str):
        said = llm.tokenizer.encode(said, add_special_tokens=False)
    real = llm.engine.runner.logit_blocks
    count = iter(range(10**6))

    def forced(hidden: torch.Tensor):
        for block in real(hidden):
            forced_block = torch.zeros(block.shape)
            for row in forced_block:
                at = next(count)
                row[said[at] if at < len(said) else EOS] = 50.0
            yield forced_block

    monkeypatch.setattr(llm.engine.runner, "logit_blocks", forced)
    return said


def byte_ids(llm: LLM, raw: bytes) -> list[int]:
    """Single-byte tokens of a byte-level vocabulary."""
    table = {llm.tokenizer.token_bytes(i): i for i in range(llm.tokenizer.vocab_size)}
    return [table[bytes([byte])] for byte in raw]


# ------------------------------------------------------------------ log-probabilities


def test_logprobs_are_finite_and_raw_under_any_filter(make_llm) -> None:
    """Pins: minus infinity from a mask or filter made the answer impossible to write as JSON."""
    llm = make_llm()
    params = SamplingParams(
        temperature=0.8,
        top_k=2,
        logprobs=5,
        prompt_logprobs=2,
        max_tokens=6,
        min_tokens=6,
        logit_bias={7: -100, 9: 100},
        seed=1,
    )
    (output,) = run(llm, [ids(5)], params)
    raw = torch.log_softmax(llm.logits(output.prompt_token_ids + output.outputs[0].token_ids), -1)
    entries = [*(output.prompt_logprobs or [])[1:], *(output.outputs[0].logprobs or [])]
    json.dumps([{t: e.logprob for t, e in entry.items()} for entry in entries], allow_nan=False)
    for position, entry in enumerate(entries):
        for token, value in entry.items():
            assert value.logprob == pytest.approx(float(raw[position, token]), abs=1e-5)
    assert (output.outputs[0].cumulative_logprob or 0) < 0


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_a_prompt_is_scored_with_and_without_output(make_llm, max_tokens: int) -> None:
    """Pins: scoring a prompt without generating crashed the engine."""
    params = SamplingParams(
        max_tokens=max_tokens, prompt_logprobs=1, logprobs=1, temperature=0, ignore_eos=True
    )
    (output,) = run(make_llm(), [ids(5)], params)
    first, *others = output.prompt_logprobs or []
    assert first is None
    assert len(others) == 4
    assert all(e[t].logprob < 0 for e, t in zip(others, ids(5)[1:], strict=True))
    assert len(output.outputs[0].token_ids) == len(output.outputs[0].logprobs) == max_tokens
    assert output.outputs[0].finish_reason == "length"
    assert output.outputs[0].text == "" or max_tokens


@pytest.mark.parametrize("length", [1, 15, 16, 17, 33])
def test_prompt_logprobs_are_complete_on_a_warm_cache(make_llm, length: int) -> None:
    """Pins: cached positions have no logits, so a repeated prompt failed or had holes."""
    llm = make_llm(block_size=16)
    params = SamplingParams(max_tokens=1, prompt_logprobs=0)
    cold, warm = (run(llm, [ids(length)], params)[0].prompt_logprobs for _ in range(2))
    assert len(cold) == length
    assert cold[0] is None
    assert None not in cold[1:]
    assert cold == warm
    assert run(llm, [ids(length)])[0].num_cached_tokens == (length - 1) // 16 * 16


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8"])
@pytest.mark.parametrize("start", [0, 1, 15, 16, 17, 33, 60, 70])
def test_a_scored_suffix_reads_cached_pages_in_front_of_it(
    make_llm, start: int, kv_cache_dtype: str
) -> None:
    """The row before the first scored token is computed; no page that holds it is taken over."""
    options = {"block_size": 16, "kv_cache_dtype": kv_cache_dtype}
    prompt = ids(70)
    score = SamplingParams(max_tokens=0, prompt_logprobs=1)
    whole = run(make_llm(**options, enable_prefix_caching=False), [prompt], score)[0]
    llm = make_llm(**options, max_num_batched_tokens=32)
    rows = RowCounter()
    llm.engine.hidden_observer = rows
    for is_warm in (False, True):
        (output,) = run(llm, [prompt], score.replace(prompt_logprobs_start=start))
        first = max(start, 1)
        assert output.prompt_logprobs == [None] * first + whole.prompt_logprobs[first:]
        num_cached = (first - 1) // 16 * 16 if is_warm else 0
        if kv_cache_dtype == "auto":
            assert output.num_cached_tokens == num_cached
        assert output.num_cached_tokens <= num_cached
        assert rows.take() == len(prompt) - first


class RowCounter:
    """Counts the rows that go through the output head."""

    def __init__(self) -> None:
        self.num_rows = 0

    def observe(self, wanted: list[Any], hidden: torch.Tensor) -> None:
        assert len(wanted) == len(hidden)
        self.num_rows += len(wanted)

    def take(self) -> int:
        num_rows, self.num_rows = self.num_rows, 0
        return num_rows


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_prompt_logprobs_survive_chunks_and_preemption(make_llm, preemption: str) -> None:
    """Pins: those of the first chunks were lost, or a half-finished output was shown."""
    params = SamplingParams(max_tokens=3, prompt_logprobs=1, temperature=0, ignore_eos=True)
    (whole,) = run(make_llm(), [ids(20)], params)
    llm = make_llm(max_num_batched_tokens=8, max_num_seqs=2, preemption=preemption)
    engine = llm.engine
    engine.add_request("a", ids(20), params)
    assert engine.step() == []
    (sequence,) = engine.scheduler.running
    force_preemption(engine)
    assert sequence.metrics.num_preemptions == 1
    shown = [engine.step() for _ in range(3)]
    assert [len(outputs) for outputs in shown].index(1) == 1, "what was scored is not read again"
    output = drain(engine)["a"]
    assert output.prompt_logprobs == whole.prompt_logprobs
    assert len(output.prompt_logprobs) == 20
    assert output.outputs[0].token_ids == whole.outputs[0].token_ids


def force_preemption(engine: Engine) -> None:
    """Take the pages of all running sequences away between two steps."""
    from infopt.engine.step_plan import StepPlan

    plan = StepPlan()
    for sequence in list(engine.scheduler.running):
        engine.scheduler._preempt(sequence, plan)
    engine.runner.store.swap_out(plan.swap_out)
    engine.scheduler.check_integrity()


# ------------------------------------------------------------------ n and seeds


def test_a_seeded_request_does_not_depend_on_its_neighbours(make_llm) -> None:
    """Pins: on a CPU a seeded request changed when an unseeded one shared its batch."""
    llm = make_llm()
    seeded = SamplingParams(temperature=0.9, seed=11, max_tokens=24, ignore_eos=True)
    alone = tokens(run(llm, [ids(5)], seeded))[0]
    others = set()
    for _ in range(3):
        first, second = tokens(
            run(llm, [ids(5), ids(6, 1)], [seeded, seeded.replace(seed=None, temperature=1.5)])
        )
        assert first == alone
        others.add(tuple(second))
    assert len(others) == 3


@pytest.mark.parametrize("n", [3, 5])
@pytest.mark.parametrize("scheduling", ["continuous", "static"])
def test_n_completions_always_come_back(make_llm, n: int, scheduling: str) -> None:
    """Pins: fewer choices than asked for came back at random."""
    llm = make_llm(scheduling=scheduling, max_num_seqs=8)
    params = SamplingParams(n=n, max_tokens=20, temperature=2.0, logit_bias={EOS: 3})
    outputs = run(llm, [ids(4, i) for i in range(12)], params)
    for output in outputs:
        assert [c.index for c in output.outputs] == list(range(n))
        assert all(c.finish_reason in ("stop", "length") for c in output.outputs)
    assert len({len(t) for t in tokens(outputs)}) > 3


def test_a_seed_repeats_the_list_of_n_texts(make_llm) -> None:
    """Pins: a seed did not make two identical calls agree."""
    llm = make_llm()
    params = SamplingParams(seed=2024, temperature=0.7, max_tokens=30, ignore_eos=True)
    assert tokens(run(llm, [ids(6)], params)) == tokens(run(llm, [ids(6)], params))
    three = params.replace(n=3)
    first, second = (tokens(run(llm, [ids(6)], three)) for _ in range(2))
    assert first == second
    assert len({tuple(t) for t in first}) == 3
    assert first[0] == tokens(run(llm, [ids(6)], params))[0]


def test_a_run_repeats_and_computing_logits_does_not_disturb_it(make_llm) -> None:
    """Pins: seeds of unseeded requests moved on when something else was computed in between."""
    params = SamplingParams(temperature=1.0, max_tokens=8, ignore_eos=True)
    one, other = make_llm(seed=5), make_llm(seed=5)
    first = tokens(run(one, [ids(5), ids(5)], params))
    other.logits(ids(9))
    assert tokens(run(other, [ids(5), ids(5)], params)) == first
    assert first[0] != first[1]
    assert tokens(run(make_llm(seed=6), [ids(5), ids(5)], params)) != first


def test_prompt_tokens_are_counted_once_for_n(make_llm) -> None:
    """Pins: n was fixed to 1, or the prompt was counted n times."""
    llm = make_llm()
    outputs = run(llm, [ids(6), ids(6, 1)], GREEDY.replace(n=3, max_tokens=4))
    assert sum(len(o.prompt_token_ids) for o in outputs) == 12
    assert sum(map(len, tokens(outputs))) == 24
    assert len(tokens(outputs)) == 6
    assert llm.engine.stats.num_generated_tokens == 24
    assert llm.engine.stats.num_requests == 2
    assert llm.engine.stats.num_finished == {"length": 6}


# ------------------------------------------------------------------ pages


def test_mixed_requests_leave_every_page_free_or_cached(make_llm) -> None:
    """Pins: used blocks grew with every finished request until nothing could be admitted."""
    llm = make_llm(num_kv_pages=60, max_num_waiting=500)
    engine, rng = llm.engine, random.Random(1)
    for i in range(120):
        params = rng.choice(
            [
                SamplingParams(max_tokens=rng.randint(0, 9), seed=i),
                SamplingParams(n=3, max_tokens=5, temperature=1.5, seed=i),
                SamplingParams(stop=["e", " "], max_tokens=12, seed=i),
                SamplingParams(logit_bias={EOS: 50}, seed=i),
                SamplingParams(prompt_logprobs=1, max_tokens=2, seed=i),
            ]
        )
        engine.add_request(str(i), ids(rng.randint(1, 30), i % 7), params)
        if i % 10 == 0:
            engine.abort(str(rng.randint(0, i)))
        if i % 15 == 0:
            with pytest.raises(InfoptError):
                engine.add_request(str(i), [1], GREEDY)
            with pytest.raises(InfoptError):
                engine.add_request("bad", ids(257), GREEDY)
        if i % 3 == 0:
            engine.step()
    drain(engine, max_steps=3000)
    assert sum(engine.stats.num_finished.values()) >= 120


def test_aborting_what_has_no_pages_yet(make_llm) -> None:
    """Pins: aborting a queued request raised."""
    llm = make_llm(max_num_seqs=1)
    engine = llm.engine
    engine.add_request("long", ids(8), GREEDY.replace(max_tokens=100))
    engine.add_request("queued", ids(8, 1), GREEDY)
    engine.step()
    assert engine.abort("queued")
    assert engine.abort("long")
    assert not engine.abort("long")
    assert not engine.abort("unknown")
    assert engine.cache.pool.num_used == 0
    done = drain(engine)
    assert {i: o.outputs[0].finish_reason for i, o in done.items()} == {
        "long": "abort",
        "queued": "abort",
    }
    assert len(done["long"].outputs[0].token_ids) == 1
    assert not engine.abort("long")
    assert tokens(run(llm, [ids(8)]))[0][0] == done["long"].outputs[0].token_ids[0]


@pytest.mark.parametrize("state", ["waiting", "running", "aborted", "unknown"])
def test_discarded_requests_are_never_reported(make_llm, state: str) -> None:
    engine = make_llm().engine
    engine.add_request("kept", ids(5, 1), GREEDY)
    if state != "unknown":
        engine.add_request("a", ids(5), GREEDY)
    if state == "running":
        engine.step()
    if state == "aborted":
        engine.abort("a")
    engine.discard("a")
    assert set(drain(engine)) == {"kept"}
    engine.add_request("a", ids(5), GREEDY)
    engine.abort_all()
    check_idle(engine)


def test_cold_warm_and_uncached_answers_agree_at_every_page_border(make_llm) -> None:
    """Pins: a prefill that resumed from cached keys used wrong positions."""
    llm, uncached = make_llm(), make_llm(enable_prefix_caching=False)
    prompts = [ids(40, 3)[:length] for length in range(1, 41)]
    expected = tokens(run(uncached, prompts))
    for prompt, answer in zip(prompts, expected, strict=True):
        llm.reset_prefix_cache()
        (cold,), (warm,) = run(llm, [prompt]), run(llm, [prompt])
        assert (cold.num_cached_tokens, warm.num_cached_tokens) == (0, (len(prompt) - 1) // 4 * 4)
        assert tokens([cold, warm]) == [answer, answer]
    other = ids(40, 3)[:22] + ids(9, 4)
    (shared,) = run(llm, [other])
    assert shared.num_cached_tokens == 20
    assert tokens([shared]) == tokens(run(uncached, [other]))


def test_after_a_reset_nothing_of_the_old_weights_is_found(make_llm) -> None:
    """Pins: weights changed under the same name, and pages computed with the old ones were used."""

    def change_weights(llm: LLM) -> None:
        llm.engine.runner.model.embedding._weight.mul_(-1.0).add_(0.01)

    prompt, llm, fresh = ids(30), make_llm(), make_llm()
    (before,) = run(llm, [prompt])
    change_weights(llm)
    (stale,) = run(llm, [prompt])
    llm.reset_prefix_cache()
    (after,) = run(llm, [prompt])
    change_weights(fresh)
    assert (stale.num_cached_tokens, after.num_cached_tokens) == (28, 0)
    assert tokens([after]) == tokens(run(fresh, [prompt]))
    assert tokens([after]) not in (tokens([before]), tokens([stale]))


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_preempted_requests_with_a_common_prefix_equal_their_solo_runs(
    make_llm, preemption: str
) -> None:
    """Pins: a preempted request met its own old blocks and its planned tokens were stale."""
    prompts = [ids(12) + ids(1 + i, i + 1) for i in range(8)]
    params = GREEDY.replace(max_tokens=16)
    llm = make_llm(num_kv_pages=24, preemption=preemption)
    outputs = run(llm, prompts, params)
    alone = make_llm(enable_prefix_caching=False)
    assert tokens(outputs) == [tokens(run(alone, [p], params))[0] for p in prompts]
    assert llm.engine.stats.num_preemptions > 0
    assert sum(o.metrics.num_preemptions for o in outputs) == llm.engine.stats.num_preemptions


@pytest.mark.parametrize(("family", "num_kv_pages"), [("mistral", 26), ("gemma3_text", 75)])
@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_window_layers_survive_cache_and_preemption(
    make_llm, family: str, num_kv_pages: int, preemption: str
) -> None:
    prompts = [ids(30, 5) + ids(1 + 3 * i, i) for i in range(5)]
    params = GREEDY.replace(max_tokens=30)
    llm = make_llm(
        family, num_kv_pages=num_kv_pages, preemption=preemption, max_num_batched_tokens=32
    )
    expected = tokens(run(make_llm(family, enable_prefix_caching=False), prompts, params))
    assert tokens(run(llm, prompts, params)) == expected
    assert llm.engine.stats.num_preemptions > 0
    assert tokens(run(llm, prompts, params)) == expected
    assert llm.engine.stats.num_cached_tokens > 0


def test_an_oversized_request_is_refused_and_blocks_nobody(make_llm) -> None:
    """Pins: it blocked the queue, or the error quoted the chunk instead of the prompt."""
    llm = make_llm(num_kv_pages=16, max_num_batched_tokens=8, max_num_seqs=4)
    with pytest.raises(CapacityError, match=r"65 tokens.*64"):
        llm.engine.add_request("big", ids(65), GREEDY)
    assert len(tokens(run(llm, [ids(5)]))[0]) == 8
    (longest,) = run(llm, [ids(10)], GREEDY.replace(max_tokens=60))
    assert len(longest.outputs[0].token_ids) == 54  # clamped to the pool
    assert longest.outputs[0].finish_reason == "length"


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_output_stays_output_over_a_preemption(make_llm, preemption: str) -> None:
    """Pins: generated tokens became prompt tokens, so penalties and min_tokens counted wrongly."""
    params = SamplingParams(
        temperature=0,
        frequency_penalty=1.0,
        min_tokens=8,
        max_tokens=14,
        logit_bias={EOS: 60},
        logprobs=2,
    )
    (expected,) = run(make_llm(), [ids(7)], params)
    llm = make_llm(preemption=preemption)
    llm.engine.add_request("a", ids(7), params)
    for _ in range(5):
        llm.engine.step()
    (sequence,) = llm.engine.scheduler.running
    force_preemption(llm.engine)
    assert (sequence.num_output_tokens, sequence.num_prompt_tokens) == (5, 7)
    output = drain(llm.engine)["a"]
    assert output.outputs[0].token_ids == expected.outputs[0].token_ids
    assert output.outputs[0].logprobs == expected.outputs[0].logprobs
    assert len(expected.outputs[0].token_ids) == 9
    assert expected.outputs[0].finish_reason == "stop"


# ------------------------------------------------------------------ lengths


def test_lengths_at_the_limit(make_llm) -> None:
    """Pins: the length of a prompt was not checked at the boundary, or blamed on max_tokens."""
    llm = make_llm(max_model_len=64)
    unset = GREEDY.replace(max_tokens=None)
    (output,) = run(llm, [ids(63)], unset)
    assert (len(output.outputs[0].token_ids), output.outputs[0].finish_reason) == (1, "length")
    assert len(tokens(run(llm, [ids(9)], unset))[0]) == 55
    for count in (64, 65, 70):
        with pytest.raises(PromptTooLongError, match=rf"{count} tokens.*64") as caught:
            llm.engine.add_request("x", ids(count), unset)
        assert "-" not in str(caught.value)
    with pytest.raises(PromptTooLongError, match=r"9 tokens.*60.*64"):
        llm.engine.add_request("x", ids(9), GREEDY.replace(max_tokens=60))
    (nothing,) = run(llm, [ids(64)], GREEDY.replace(max_tokens=0))
    assert nothing.outputs[0].token_ids == []
    assert nothing.outputs[0].finish_reason == "length"
    assert nothing.metrics.ttft_s is None


def test_bad_bias_is_refused_and_the_next_request_works(make_llm) -> None:
    """Pins: a bias for an id at or beyond the vocabulary killed the scheduler."""
    llm = make_llm()
    for bias in ({320: 5}, {10**9: 5}):
        with pytest.raises(SamplingParamsError, match="logit_bias"):
            llm.engine.add_request("x", ids(3), GREEDY.replace(logit_bias=bias))
    forced = GREEDY.replace(logit_bias={319: 100}, max_tokens=2)
    assert tokens(run(llm, [ids(3)], forced)) == [[319, 319]]
    empty = GREEDY.replace(logit_bias={}, stop=[], stop_token_ids=[])
    assert tokens(run(llm, [ids(3)], empty)) == tokens(run(llm, [ids(3)]))


def test_padding_rows_of_the_embedding_are_never_sampled(make_llm) -> None:
    """Pins: placeholder tokens of a padded vocabulary were produced."""
    llm = make_llm(model={"vocab_size": 328})
    params = SamplingParams(temperature=2.0, max_tokens=200, ignore_eos=True, seed=1, logprobs=64)
    outputs = run(llm, [ids(3, i) for i in range(4)], params)
    assert max(max(t) for t in tokens(outputs)) < 320
    assert all(t < 320 for o in outputs for e in o.outputs[0].logprobs or [] for t in e)
    with pytest.raises(SamplingParamsError, match="logit_bias"):
        llm.engine.add_request("x", ids(3), GREEDY.replace(logit_bias={322: 5}))
    with pytest.raises(PromptError, match="322"):
        llm.engine.add_request("x", [322], GREEDY)


# ------------------------------------------------------------------ ends of outputs


def test_stop_strings_end_the_text_and_free_the_pages(make_llm, monkeypatch) -> None:
    llm = make_llm()
    said = script(llm, monkeypatch, "go under an old oak")
    shown: list[str] = []
    llm.engine.add_request("a", ids(3), SamplingParams(temperature=0, stop="old", max_tokens=40))
    while llm.engine.has_unfinished:
        shown += [o.outputs[0].text for o in llm.engine.step()]
    check_idle(llm.engine)
    assert shown[-1] == "go under an "
    assert all(b.startswith(a) for a, b in itertools.pairwise(shown))
    assert len(shown) < len(said)


@pytest.mark.parametrize("include", [False, True])
def test_a_stop_string_is_reported(make_llm, monkeypatch, include: bool) -> None:
    llm = make_llm()
    script(llm, monkeypatch, "ab!cd")
    params = SamplingParams(
        temperature=0, stop=["?", "!"], include_stop_str_in_output=include, max_tokens=40
    )
    completion = run(llm, [ids(3)], params)[0].outputs[0]
    assert completion.text == ("ab!" if include else "ab")
    assert (completion.finish_reason, completion.stop_reason) == ("stop", "!")


@pytest.mark.parametrize("ends", ["eos", "length"])
def test_unfinished_characters_are_flushed_once(make_llm, monkeypatch, ends: str) -> None:
    """Pins: bytes that never become a character raised and killed the stream."""
    llm = make_llm()
    raw = b"a\xa9" if ends == "eos" else b"\xf0"
    script(llm, monkeypatch, byte_ids(llm, raw))
    params = SamplingParams(temperature=0, max_tokens=9 if ends == "eos" else 1, logprobs=1)
    completion = run(llm, [ids(3)], params)[0].outputs[0]
    assert completion.text == raw.decode(errors="replace")
    assert completion.text.count("\ufffd") == 1
    assert completion.finish_reason == ("stop" if ends == "eos" else "length")
    last = completion.logprobs[-1][completion.token_ids[-1]].token_bytes
    assert last == (b"</s>" if ends == "eos" else raw)


def test_eos_ends_unless_ignored(make_llm, monkeypatch) -> None:
    llm = make_llm()
    said = script(llm, monkeypatch, "ab")
    completion = run(llm, [ids(3)], SamplingParams(temperature=0))[0].outputs[0]
    assert completion.token_ids == [*said, EOS]
    assert (completion.text, completion.finish_reason, completion.stop_reason) == (
        "ab",
        "stop",
        None,
    )
    forced = SamplingParams(logit_bias={EOS: 100}, max_tokens=5, ignore_eos=True, seed=0)
    (completion,) = run(make_llm(), [ids(3)], forced)[0].outputs
    assert completion.token_ids == [EOS] * 5
    assert (completion.text, completion.finish_reason) == ("", "length")


@pytest.mark.parametrize("include", [False, True])
def test_stop_token_ids_end_and_are_kept(make_llm, monkeypatch, include: bool) -> None:
    llm = make_llm()
    said = script(llm, monkeypatch, byte_ids(llm, b"abcd"))
    params = SamplingParams(
        temperature=0,
        stop_token_ids=[said[2]],
        ignore_eos=True,
        include_stop_str_in_output=include,
    )
    completion = run(llm, [ids(3)], params)[0].outputs[0]
    assert completion.token_ids == said[:3]
    assert completion.text == ("abc" if include else "ab")
    assert (completion.finish_reason, completion.stop_reason) == ("stop", said[2])


def test_min_tokens_holds_every_kind_of_stop_back(make_llm) -> None:
    llm = make_llm()
    params = SamplingParams(
        temperature=0, logit_bias={EOS: 90, 7: 95}, stop_token_ids=[7], min_tokens=4, max_tokens=20
    )
    (completion,) = run(llm, [ids(3)], params)[0].outputs
    assert len(completion.token_ids) == 5
    assert completion.token_ids[-1] == 7
    assert not {EOS, 7} & set(completion.token_ids[:-1])


def test_min_tokens_holds_stop_strings_back(make_llm, monkeypatch) -> None:
    llm = make_llm()
    script(llm, monkeypatch, byte_ids(llm, b"ababab"))
    params = SamplingParams(temperature=0, stop="ab", min_tokens=3, max_tokens=6)
    completion = run(llm, [ids(3)], params)[0].outputs[0]
    assert (completion.text, len(completion.token_ids)) == ("ab", 4)


def test_without_detokenizing_there_is_no_text(make_llm) -> None:
    plain = GREEDY.replace(detokenize=False, logprobs=1)
    completion = run(make_llm(), [ids(3)], plain)[0].outputs[0]
    assert completion.text == ""
    entries = completion.logprobs or []
    assert len(entries) == 8
    assert all(e.token_bytes is None for entry in entries for e in entry.values())
    llm = make_llm(skip_tokenizer_init=True)
    assert tokens(run(llm, [ids(3)])) == [completion.token_ids]
    for prompt, params in (("text", GREEDY), (ids(3), GREEDY.replace(stop="a"))):
        with pytest.raises(PromptError, match="skip_tokenizer_init"):
            llm.engine.add_request("x", prompt, params)
    check_idle(llm.engine)


# ------------------------------------------------------------------ requests and their order


def test_bad_requests_leave_nothing_behind(make_llm) -> None:
    engine = make_llm(max_num_waiting=2).engine
    engine.add_request("a", ids(3), GREEDY)
    for prompt, params in (
        (ids(3), GREEDY),  # the id is in use
        ([], GREEDY),
        ([10**6], GREEDY),
        (None, GREEDY),
        (7, GREEDY),
        ([[1]], GREEDY),
        (ids(3), None),
        (ids(3), {"max_tokens": 3}),
        ("\ud83d", GREEDY),
    ):
        name = "a" if prompt == ids(3) and params is GREEDY else "x"
        with pytest.raises(InfoptError):
            engine.add_request(name, prompt, params)
    engine.add_request("b", ids(3), GREEDY)
    with pytest.raises(QueueFullError, match="limit is 2") as caught:
        engine.add_request("c", ids(3), GREEDY)
    assert caught.value.field == "max_num_waiting"
    assert set(drain(engine)) == {"a", "b"}
    with pytest.raises(QueueFullError):
        engine.add_request("c", ids(3), GREEDY.replace(n=3))
    engine.add_request("a", ids(3), GREEDY)  # the id is free again
    assert set(drain(engine)) == {"a"}
    assert engine.stats.num_requests == 3


def test_only_what_changed_is_reported(make_llm) -> None:
    """A chunk of a prompt, computed for the first time or again, has nothing to show."""
    engine = make_llm(max_num_batched_tokens=8, max_num_seqs=4).engine
    engine.add_request("a", ids(20), GREEDY.replace(max_tokens=6))
    seen, preempted = [], False
    while engine.has_unfinished:
        for output in engine.step():
            seen.append(len(output.outputs[0].token_ids))
        if len(seen) == 3 and not preempted:
            engine.reset_prefix_cache()
            force_preemption(engine)
            engine.reset_prefix_cache()
            preempted = True
    assert seen == [1, 2, 3, 4, 5, 6]


def test_metrics_follow_the_clock(make_llm) -> None:
    clock = VirtualClock(100.0)
    engine = make_llm(clock=clock, max_num_seqs=1).engine
    engine.step_log = []
    engine.add_request("a", ids(5), GREEDY.replace(max_tokens=3), arrival_s=99.0)
    engine.add_request("b", ids(5, 1), GREEDY.replace(max_tokens=1))
    done = {}
    while engine.has_unfinished:
        clock.advance(1.0)
        done |= {o.request_id: o for o in engine.step() if o.finished}
    a, b = done["a"].metrics, done["b"].metrics
    assert a.token_times_s == [101.0, 102.0, 103.0]
    assert (a.queue_s, a.ttft_s, a.e2e_s, a.tpot_s) == (2.0, 2.0, 4.0, 1.0)
    assert (b.queue_s, b.ttft_s, b.e2e_s, b.tpot_s) == (4.0, 4.0, 4.0, None)
    assert [s.num_prefill_tokens for s in engine.step_log] == [5, 0, 0, 5]
    assert [s.num_decode_tokens for s in engine.step_log] == [0, 1, 1, 0]
    assert [s.start_s for s in engine.step_log] == [101.0, 102.0, 103.0, 104.0]
    assert engine.stats.num_steps == 4
    engine.reset_stats()
    assert engine.stats.num_steps == 0


@pytest.mark.parametrize("options", [{"max_num_seqs": 3}, {"num_kv_pages": 30}])
def test_padding_is_counted_and_changes_no_token(make_llm, options: dict[str, Any]) -> None:
    prompts = [ids(length, length) for length in (3, 14, 9, 1, 21)]
    params = [GREEDY.replace(max_tokens=m) for m in (2, 9, 4, 7, 1)]
    expected = tokens(run(make_llm(), prompts, params))
    llm = make_llm(scheduling="static_padded", **options)
    llm.engine.step_log = []
    assert tokens(run(llm, prompts, params)) == expected
    padding = [s.num_padding_tokens for s in llm.engine.step_log]
    if options == {"max_num_seqs": 3}:
        assert padding == [11 + 5, 0, 1, 1, 2, 2, 2, 2, 2, 20, 1, 1, 1, 1, 1, 1]
    else:
        assert sum(padding) > 0


# ------------------------------------------------------------------ failures


class BoomError(Exception):
    """A failure inside a step."""


def fail_once(monkeypatch: pytest.MonkeyPatch, target: Any, name: str, after: int = 0) -> None:
    real, calls = getattr(target, name), iter(range(10**6))

    def failing(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == after:
            raise BoomError
        return real(*args, **kwargs)

    monkeypatch.setattr(target, name, failing)


@pytest.mark.parametrize(
    ("place", "after"),
    [("hidden", 0), ("hidden", 2), ("logit_blocks", 1), ("build", 1), ("_append", 0)],
)
def test_a_failing_step_leaks_nothing_and_the_engine_goes_on(
    make_llm, monkeypatch, place: str, after: int
) -> None:
    llm = make_llm(max_num_seqs=3)
    engine = llm.engine
    expected = tokens(run(llm, [ids(5, i) for i in range(6)]))
    target = engine.steps.chooser if place == "_append" else engine.runner
    fail_once(monkeypatch, target, place, after)
    for i in range(6):
        engine.add_request(str(i), ids(5, i), GREEDY)
    with pytest.raises(BoomError):
        drain(engine)
    engine.scheduler.check_integrity()
    done = drain(engine)
    reasons = [done[str(i)].outputs[0].finish_reason for i in range(6)]
    assert reasons == ["error"] * 3 + ["length"] * 3
    assert [done[str(i)].outputs[0].token_ids for i in range(3, 6)] == expected[3:]
    assert tokens(run(llm, [ids(5, i) for i in range(6)])) == expected


def test_a_failing_step_loses_no_report(make_llm, monkeypatch) -> None:
    """Pins: what was aborted before a failing step, or finished in it, was never reported, and its
    id stayed in use for ever.
    """
    engine = make_llm().engine
    engine.add_request("aborted", ids(5), GREEDY)
    engine.add_request("finished", ids(5, 1), GREEDY.replace(max_tokens=1))
    engine.add_request("failed", ids(5, 2), GREEDY)
    engine.abort("aborted")
    fail_once(monkeypatch, engine.steps.chooser, "_append", 1)
    with pytest.raises(BoomError):
        engine.step()
    reasons = {i: o.outputs[0].finish_reason for i, o in drain(engine).items()}
    assert reasons == {"aborted": "abort", "finished": "length", "failed": "error"}
    engine.add_request("aborted", ids(5), GREEDY)
    drain(engine)


def test_a_failing_swap_does_not_leave_garbage_for_later(make_llm, monkeypatch) -> None:
    """Pins: copies that were never made were taken for the content of a swapped-out request."""
    prompts = [ids(12, i) for i in range(4)]
    params = GREEDY.replace(max_tokens=16)
    llm = make_llm(num_kv_pages=20, preemption="swap", enable_prefix_caching=False)
    expected = tokens(run(make_llm(), prompts, params))
    real = llm.engine.runner.store.swap_out
    failed = []

    def swap_out(moves: list[tuple[int, int]]) -> None:
        if moves and not failed:
            failed.append(moves)
            raise BoomError
        real(moves)

    monkeypatch.setattr(llm.engine.runner.store, "swap_out", swap_out)
    for i, prompt in enumerate(prompts):
        llm.engine.add_request(str(i), prompt, params)
    with pytest.raises(BoomError):
        drain(llm.engine)
    done = drain(llm.engine)
    for i, answer in enumerate(expected):
        completion = done[str(i)].outputs[0]
        if completion.finish_reason == "error":
            assert completion.token_ids == answer[: len(completion.token_ids)]
        else:
            assert completion.token_ids == answer
    assert {o.outputs[0].finish_reason for o in done.values()} == {"error", "length"}


def test_a_failed_sibling_does_not_take_the_others_along(make_llm, monkeypatch) -> None:
    engine = make_llm().engine
    engine.add_request("a", ids(9), GREEDY.replace(n=3))
    fail_once(monkeypatch, engine.runner, "hidden", 0)
    with pytest.raises(BoomError):
        engine.step()
    reasons = [c.finish_reason for c in drain(engine)["a"].outputs]
    assert reasons == ["error", "length", "length"]


@pytest.mark.parametrize(
    ("family", "num_kv_pages", "longest"), [("llama", 42, 168), ("gemma3_text", 60, 152)]
)
def test_logits_need_no_more_pages_than_a_request(
    make_llm, family: str, num_kv_pages: int, longest: int
) -> None:
    """Pins: all pages were taken at once, also behind a window, and the error blamed others."""
    llm = make_llm(family, num_kv_pages=num_kv_pages, max_num_batched_tokens=16, max_num_seqs=4)
    assert llm.engine.describe()["pool_tokens"] >= longest
    whole = make_llm(family).logits(ids(longest))
    assert torch.equal(llm.logits(ids(longest)), whole)
    check_idle(llm.engine)
    llm.engine.add_request("a", ids(100, 1), GREEDY)
    for _ in range(7):
        llm.engine.step()
    with pytest.raises(CapacityError, match="other requests"):
        llm.logits(ids(longest))
    assert len(drain(llm.engine)["a"].outputs[0].token_ids) == 8


def test_swap_and_recompute_give_equal_results(make_llm) -> None:
    prompts = [ids(9 + i, i) for i in range(6)]
    params = SamplingParams(
        n=2, max_tokens=20, temperature=1.0, seed=3, ignore_eos=True, logprobs=1
    )
    results: dict[str, Any] = {}
    makers: dict[str, Callable[[], LLM]] = {
        "alone": make_llm,
        "recompute": lambda: make_llm(num_kv_pages=30, preemption="recompute"),
        "swap": lambda: make_llm(num_kv_pages=30, preemption="swap"),
        "full host": lambda: make_llm(num_kv_pages=30, preemption="swap", swap_memory_gib=3e-5),
    }
    for name, make in makers.items():
        llm = make()
        outputs = run(llm, prompts, params)
        results[name] = [(c.token_ids, c.logprobs) for o in outputs for c in o.outputs]
        if name != "alone":
            assert llm.engine.stats.num_preemptions > 0
        if name == "full host":
            assert llm.engine.scheduler.num_swap_fallbacks > 0
    assert all(result == results["alone"] for result in results.values())
