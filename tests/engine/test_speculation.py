"""Guesses never change an output: tokens, text, log-probabilities and their bits in float32.

The guesses come from the methods that ship, and from drafters that know the answer and are right,
wrong, or both in turn, so that runs of any length are accepted and rejected on any model.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from infopt import LLM, SamplingParams
from infopt.engine.clock import VirtualClock
from infopt.engine.drafting import DraftRequest
from infopt.outputs import CompletionOutput, RequestOutput

GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
NGRAM = {"method": "ngram", "prompt_lookup_min": 1}
SUFFIX = {"method": "suffix", "min_match": 1}


class Oracle:
    """Guesses from known texts; each guess is wrong with a probability, or always or never.

    Args:
        texts: Prompts with their outputs.
        max_tokens: Guesses at most.
        wrong: Probability of a wrong guess.
        silent: Prompts that nothing is guessed for, by their first token.
    """

    def __init__(
        self,
        texts: list[list[int]],
        max_tokens: int = 4,
        wrong: float = 0.3,
        silent: Sequence[int] = (),
    ) -> None:
        self.max_tokens, self._texts, self._wrong, self._silent = max_tokens, texts, wrong, silent
        self.num_requests = 0

    def propose(self, requests: Sequence[DraftRequest]) -> list[list[int]]:
        self.num_requests += len(requests)
        return [self._guess(request) for request in requests]

    def forget(self, seq_id: int) -> None:
        pass

    def _guess(self, request: DraftRequest) -> list[int]:
        known, rng = list(request.token_ids), random.Random(len(request.token_ids))
        if known[0] in self._silent:
            return []
        text = next((t for t in self._texts if t[: len(known)] == known), None)
        if text is None:
            return [5] * request.max_tokens
        right = text[len(known) : len(known) + request.max_tokens]
        return [4 + (t + 1) % 300 if rng.random() < self._wrong else t for t in right]


def ids(count: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(4, 320), k=count)


def use(llm: LLM, drafter: Any) -> LLM:
    """Put a drafter into an engine that was built without."""
    llm.engine.scheduler.drafter = drafter
    llm.engine.reset_stats()
    return llm


def texts_of(outputs: list[RequestOutput]) -> list[list[int]]:
    return [[*o.prompt_token_ids, *c.token_ids] for o in outputs for c in o.outputs]


def facts(outputs: list[RequestOutput]) -> list[Any]:
    """Everything of an output but its times."""

    def of(completion: CompletionOutput) -> Any:
        return dataclasses.replace(completion, metrics=None)

    return [([of(c) for c in o.outputs], o.prompt_logprobs, o.num_cached_tokens) for o in outputs]


def run(llm: LLM, prompts: Any, params: Any = GREEDY) -> list[RequestOutput]:
    outputs = llm.generate(prompts, params, use_tqdm=False)
    llm.engine.scheduler.check_integrity()
    assert llm.engine.cache.pool.num_used == 0
    return outputs


def record(llm: LLM) -> dict[tuple[str, int], torch.Tensor]:
    """Keep the raw logits that each token was chosen from."""
    kept: dict[tuple[str, int], torch.Tensor] = {}

    def keep(sequence: Any, row: torch.Tensor) -> None:
        kept[sequence.request_id, len(sequence.token_ids)] = row.clone()

    llm.engine.logit_observer = keep
    return kept


SETTINGS: dict[str, dict[str, Any]] = {
    "batched": {},
    "chunk-16": {"max_num_batched_tokens": 16, "max_num_seqs": 8},
    "no-prefix-cache": {"enable_prefix_caching": False},
    "preempt-recompute": {"tight": True},
    "preempt-swap": {"tight": True, "preemption": "swap"},
    "static": {"scheduling": "static", "max_num_seqs": 3},
    "static-padded": {"scheduling": "static_padded", "max_num_seqs": 3},
    "page-16": {"block_size": 16},
    "best-kernels": {"backend": "auto"},
}
LENGTHS = (1, 3, 4, 9, 17, 30, 31, 40)


def prompts_of(lengths: Sequence[int]) -> list[list[int]]:
    """Random prompts; the last ones begin alike, to meet the prefix cache."""
    prompts = [ids(length, seed) for seed, length in enumerate(lengths)]
    prompts[-1][:20] = prompts[-2][:20]
    return prompts


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "mistral"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_logits_and_tokens_are_bit_identical(
    make_llm: Callable[..., LLM], family: str, setting: str
) -> None:
    """Two gemma groups and mistral slide a window of 24 over up to 64 tokens."""
    options = dict(SETTINGS[setting])
    if options.pop("tight", False):
        options["num_kv_pages"] = {"llama": 30, "mistral": 30, "gemma3_text": 75}[family]
    prompts = prompts_of(LENGTHS)
    page = {
        "block_size": options.get("block_size", 4),
        "backend": options.get("backend", "reference"),
    }
    plain = make_llm(family, **page)
    logits = record(plain)
    expected = run(plain, prompts)
    llm = use(make_llm(family, **options), Oracle(texts_of(expected), silent=[prompts[3][0]]))
    got_logits = record(llm)
    got = run(llm, prompts)
    assert texts_of(got) == texts_of(expected)
    # Requests are numbered in both engines alike.
    assert got_logits.keys() == logits.keys()
    different = [key for key in logits if not torch.equal(logits[key], got_logits[key])]
    assert not different, f"{len(different)} of {len(logits)} rows differ, first {different[:3]}"
    stats = llm.engine.draft_stats
    assert stats is not None
    assert stats.num_accepted > 20
    assert stats.num_rejections > 10
    assert stats.num_plain_passes > 0
    assert (llm.stats()["preemptions"] > 0) == setting.startswith("preempt")


@pytest.mark.parametrize("length", range(1, 9))
@pytest.mark.parametrize("options", [NGRAM, SUFFIX], ids=lambda o: o["method"])
def test_every_method_and_length_is_lossless(
    make_llm: Callable[..., LLM], options: dict[str, Any], length: int
) -> None:
    """Prompts that repeat themselves, so that something is guessed from the first step on."""
    prompts = [ids(7, seed) * 4 for seed in range(5)]
    expected = run(make_llm(), prompts, GREEDY.replace(max_tokens=33))
    llm = make_llm(speculative=options | {"num_speculative_tokens": length})
    got = run(llm, prompts, GREEDY.replace(max_tokens=33))
    assert facts(got) == facts(expected)
    stats = llm.stats()["speculative"]
    assert stats["proposed_tokens"] > 0
    assert stats["num_speculative_tokens"] == length
    assert 1 <= len(stats["acceptance_by_position"]) <= length
    assert all(c.token_ids and len(c.token_ids) == 33 for o in got for c in o.outputs)
    assert llm.engine.scheduler.drafter.num_outputs == 0  # type: ignore[union-attr]


SAMPLED: dict[str, SamplingParams] = {
    "temperature": SamplingParams(temperature=0.7, seed=1),
    "top-k": SamplingParams(temperature=1.3, top_k=5, seed=2),
    "top-p": SamplingParams(temperature=1.0, top_p=0.8, seed=3),
    "min-p": SamplingParams(temperature=1.0, min_p=0.1, seed=4),
    "penalties": SamplingParams(
        temperature=0.5,
        presence_penalty=0.7,
        frequency_penalty=0.4,
        repetition_penalty=1.3,
        seed=5,
    ),
    "greedy-penalties": SamplingParams(
        temperature=0, frequency_penalty=1.5, repetition_penalty=1.2, presence_penalty=-0.5
    ),
    "bias": SamplingParams(temperature=1.0, logit_bias={9: 4.0, 17: -100.0, 30: 6.0}, seed=6),
    "min-tokens": SamplingParams(
        temperature=1.0, min_tokens=11, stop_token_ids=list(range(4, 160)), seed=7
    ),
    "stop-ids": SamplingParams(temperature=1.0, stop_token_ids=list(range(4, 30)), seed=8),
    "logprobs": SamplingParams(temperature=0.9, logprobs=4, prompt_logprobs=2, seed=9),
    "several": SamplingParams(temperature=1.1, n=3, seed=10, logprobs=0),
    "unseeded": SamplingParams(temperature=0.9),
    "one-token": SamplingParams(temperature=0.9, max_tokens=1, seed=12),
    "two-tokens": SamplingParams(temperature=0.9, max_tokens=2, seed=13),
}


@pytest.mark.parametrize("num_kv_pages", [400, 30])
def test_samples_are_those_of_their_seeds(make_llm: Callable[..., LLM], num_kv_pages: int) -> None:
    """All parameters in one batch; guesses kept and rejected; with preemption and without."""
    params = [p if p.max_tokens != 16 else p.replace(max_tokens=24) for p in SAMPLED.values()]
    prompts = [ids(9, seed) for seed in range(len(params))]
    expected = run(make_llm(), prompts, params)
    llm = make_llm(num_kv_pages=num_kv_pages)
    got = run(use(llm, Oracle(texts_of(expected), max_tokens=5)), prompts, params)
    for name, one, other in zip(SAMPLED, facts(expected), facts(got), strict=True):
        assert one == other, name
    stats = llm.engine.draft_stats
    assert stats is not None
    assert stats.num_accepted > 40
    assert stats.num_rejections > 20
    assert (llm.stats()["preemptions"] > 0) == (num_kv_pages == 30)


@pytest.mark.parametrize("num_kv_pages", [400, 30])
def test_choosing_lengths_changes_nothing_but_the_time(
    make_llm: Callable[..., LLM], num_kv_pages: int
) -> None:
    """``auto`` drops guesses, asks for fewer and tries others, by times that differ every run."""
    params = [p if p.max_tokens != 16 else p.replace(max_tokens=24) for p in SAMPLED.values()]
    params += [GREEDY.replace(max_tokens=40)] * 4
    prompts = [ids(9, seed) for seed in range(len(params))]
    expected = run(make_llm(), prompts, params)
    llm = make_llm(num_kv_pages=num_kv_pages, speculative={"method": "auto", "probe_share": 0.3})
    control = llm.engine.scheduler.control
    llm = use(llm, Oracle(texts_of(expected), max_tokens=5, wrong=0.2))
    for one, other in zip(facts(expected), facts(run(llm, prompts, params)), strict=True):
        assert one[:2] == other[:2]
    assert control is llm.engine.scheduler.control
    report = llm.stats()["speculative"]
    decided = report["controller"]["decisions"]
    assert decided["learn"] > 0
    assert report["drafted_passes"] > 0
    assert sum(decided.values()) <= llm.stats()["steps"]
    llm.engine.reset_stats()
    assert not any(llm.stats()["speculative"]["controller"]["decisions"].values())


def test_time_of_proposing_is_no_time_of_verifying(make_llm: Callable[..., LLM]) -> None:
    """A drafter that takes a second per proposal, on a clock that nothing else moves."""
    expected = run(make_llm(), [ids(6)])
    llm = make_llm()
    clock = VirtualClock()
    llm.engine.clock = llm.engine.scheduler.control._clock = clock
    drafter = Oracle(texts_of(expected), max_tokens=3, wrong=0.0)
    right = drafter._guess

    def slow(request: DraftRequest) -> list[int]:
        clock.advance(1.0)
        return right(request)

    drafter._guess = slow  # type: ignore[method-assign]
    use(llm, drafter)
    llm.engine.step_log = []
    run(llm, [ids(6)])
    stats = llm.engine.draft_stats
    assert stats is not None
    assert stats.draft_s == drafter.num_requests
    assert stats.drafted.step_s == 0
    assert sum(s.draft_s for s in llm.engine.step_log) == stats.draft_s
    assert all(s.schedule_s == s.draft_s for s in llm.engine.step_log)


def test_samples_follow_the_model_whatever_is_guessed(
    make_llm: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins: a guess without probabilities was judged by the draft's full distribution, which moved
    the output from [0.6, 0.3, 0.1] to [0.4, 0.6, 0.0].

    The guess always is the token with probability 0.3: acceptance is 0.3, and the frequencies are
    the model's (chi-square of 3 outcomes below its 0.1 % quantile, 13.8; seeds are fixed).
    """
    llm = make_llm(max_num_seqs=32, num_kv_pages=1200)
    law = torch.tensor([0.6, 0.3, 0.1])
    constant_logits(llm, monkeypatch, {7: 0.6, 8: 0.3, 9: 0.1})
    always = Oracle([], max_tokens=1)
    always._guess = lambda request: [8]  # type: ignore[method-assign]
    params = SamplingParams(temperature=1, max_tokens=100, seed=3, n=20, detokenize=False)
    outputs = run(use(llm, always), [ids(4), ids(5)], [params, params.replace(seed=4)])
    counts = torch.zeros(3)
    for output in outputs:
        for completion in output.outputs:
            for token in completion.token_ids:
                counts[token - 7] += 1
    total = float(counts.sum())
    assert total == 4000
    assert float(((counts - law * total) ** 2 / (law * total)).sum()) < 13.8
    stats = llm.engine.draft_stats
    assert stats is not None
    assert stats.acceptance_rate == pytest.approx(0.3, abs=0.04)


def constant_logits(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, probabilities: dict[int, float]
) -> None:
    """Make the model give the same distribution everywhere."""
    real = llm.engine.runner.logit_blocks

    def blocks(hidden: torch.Tensor):
        for block in real(hidden):
            forced = torch.full(block.shape, -1e9)
            for token, probability in probabilities.items():
                forced[:, token] = torch.tensor(probability).log()
            yield forced

    monkeypatch.setattr(llm.engine.runner, "logit_blocks", blocks)


def test_penalties_count_accepted_tokens(
    make_llm: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins: penalties were ignored, or counted late, once tokens were guessed.

    Logits a = 5.0, b = 4.2, c = 1.0 and a frequency penalty of 0.5 give a a b a b a b a.
    """
    llm = make_llm()
    logits = {7: 5.0, 8: 4.2, 9: 1.0}
    constant_logits(llm, monkeypatch, {t: float(torch.tensor(v).exp()) for t, v in logits.items()})
    always = Oracle([], max_tokens=3)
    always._guess = lambda request: [7] * request.max_tokens  # type: ignore[method-assign]
    params = SamplingParams(temperature=0, frequency_penalty=0.5, max_tokens=8)
    (output,) = run(use(llm, always), [ids(3)], params)
    assert output.outputs[0].token_ids == [7, 7, 8, 7, 8, 7, 8, 7]


@pytest.mark.parametrize(("wrong", "rate", "emitted"), [(0.0, 1.0, 4.0), (1.0, 0.0, 1.0)])
def test_acceptance_and_tokens_per_pass_at_the_extremes(
    make_llm: Callable[..., LLM], wrong: float, rate: float, emitted: float
) -> None:
    """Pins: figures with and without the token after the guesses could not be told apart, and a
    rate of 100 % hid that nothing was guessed.
    """
    params = GREEDY.replace(max_tokens=30)
    expected = run(make_llm(), [ids(6)], params)
    llm = use(make_llm(), Oracle(texts_of(expected), max_tokens=3, wrong=wrong))
    llm.engine.step_log = []
    assert facts(run(llm, [ids(6)], params)) == facts(expected)
    stats = llm.engine.draft_stats
    assert stats is not None
    assert stats.acceptance_rate == rate
    assert stats.alpha == rate
    assert stats.tokens_per_drafted_pass == emitted
    # The prompt gives the first token, the last one needs no guess after it.
    passes = stats.num_drafted_passes
    assert stats.num_emitted + stats.num_plain_passes == 29
    assert passes == (7 if rate else 28)
    log = llm.engine.step_log
    assert sum(step.num_draft_tokens for step in log) == stats.num_proposed
    assert sum(step.num_accepted_tokens for step in log) == stats.num_accepted
    assert [step.num_prefill_tokens for step in log] == [6] + [0] * (len(log) - 1)
    assert sum(step.num_decode_tokens for step in log) == passes + stats.num_plain_passes
    assert log[1].num_tokens == 4
    assert log[1].num_logit_rows == 4


@pytest.mark.parametrize("include", [True, False])
def test_a_stop_string_inside_an_accepted_run_ends_the_output(
    make_llm: Callable[..., LLM], include: bool
) -> None:
    """Nothing after it is shown, counted, or kept in the prefix cache."""
    params = GREEDY.replace(max_tokens=24, include_stop_str_in_output=include, logprobs=1)
    (whole,) = run(make_llm(), [ids(11)], params)
    text = whole.outputs[0].text
    llm = use(make_llm(), Oracle(texts_of([whole]), max_tokens=8, wrong=0.0))
    for at in range(2, min(len(text), 20), 3):
        stopping = params.replace(stop=[text[at : at + 2]])
        expected = run(make_llm(), [ids(11)], stopping)
        assert facts(run(llm, [ids(11)], stopping))[0][0] == facts(expected)[0][0]
        assert expected[0].outputs[0].finish_reason == "stop"


def test_eos_inside_an_accepted_run_ends_the_output(
    make_llm: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model says EOS for ever, and the lowest id as long as ``min_tokens`` masks that.

    All guesses are right, but nothing looks at those behind the end.
    """
    llm = make_llm()
    constant_logits(llm, monkeypatch, {1: 1.0})
    right = Oracle([], max_tokens=6)

    def guess(request: DraftRequest) -> list[int]:
        return ([0] * (3 + 4 - len(request.token_ids)) + [1] * 6)[:6]

    right._guess = guess  # type: ignore[method-assign]
    params = SamplingParams(temperature=0, max_tokens=12, min_tokens=4)
    (output,) = run(use(llm, right), [ids(3)], params)
    assert output.outputs[0].token_ids == [0, 0, 0, 0, 1]
    assert output.outputs[0].finish_reason == "stop"
    stats = llm.engine.draft_stats
    assert stats is not None
    assert (stats.num_drafted_passes, stats.num_emitted) == (1, 4)
    assert (stats.num_proposed, stats.num_accepted, stats.num_rejections) == (4, 4, 0)


FORMS = (
    {"json": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}},
    {"regex": "(ab|cd){3,9}x"},
    {"choice": ["yes", "no", "perhaps not"]},
)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_grammars_hold_in_accepted_runs(make_llm: Callable[..., LLM], temperature: float) -> None:
    """Masks follow the tokens kept, not the guesses; half of those break the form."""
    params = [
        SamplingParams(
            temperature=temperature, seed=i, max_tokens=40, structured_outputs=form, min_tokens=2
        )
        for i, form in enumerate(FORMS * 2)
    ]
    prompts = [ids(5, seed) for seed in range(len(params))]
    expected = run(make_llm(), prompts, params)
    llm = use(make_llm(), Oracle(texts_of(expected), max_tokens=4, wrong=0.2))
    assert facts(run(llm, prompts, params)) == facts(expected)
    stats = llm.engine.draft_stats
    assert stats is not None
    assert stats.num_accepted > 5
    assert stats.num_rejections > 5


def test_only_tokens_of_the_output_enter_the_prefix_cache(make_llm: Callable[..., LLM]) -> None:
    """A second turn reads the first one's pages and gets the answer of a cold engine."""
    first = run(make_llm(), [ids(10)], GREEDY.replace(max_tokens=30))
    for wrong in (0.0, 0.4, 1.0):
        llm = use(make_llm(), Oracle(texts_of(first), max_tokens=7, wrong=wrong))
        assert texts_of(run(llm, [ids(10)], GREEDY.replace(max_tokens=30))) == texts_of(first)
        turn = [*texts_of(first)[0], *ids(3, 5)]
        (warm,) = run(llm, [turn])
        assert warm.num_cached_tokens == 36  # 39 tokens have keys: the newest never has
        assert facts([warm])[0][0] == facts(run(make_llm(), [turn]))[0][0]


@pytest.mark.parametrize("budget", [3, 4, 5, 9])
def test_a_full_step_shortens_guesses(make_llm: Callable[..., LLM], budget: int) -> None:
    """Guesses take what decodes and prompts leave of the step."""
    prompts = [ids(6, seed) for seed in range(3)]
    expected = run(make_llm(), prompts)
    llm = make_llm(max_num_batched_tokens=budget, max_num_seqs=3)
    use(llm, Oracle(texts_of(expected), max_tokens=6, wrong=0.1))
    llm.engine.step_log = []
    assert texts_of(run(llm, prompts)) == texts_of(expected)
    assert max(step.num_tokens for step in llm.engine.step_log) <= budget
    waiting = [
        s for s in llm.engine.step_log if s.num_decode_tokens + s.num_prefill_tokens == budget
    ]
    assert all(step.num_draft_tokens == 0 for step in waiting)
    stats = llm.engine.draft_stats
    assert stats is not None
    assert stats.num_proposed > 0


def test_guesses_never_preempt(make_llm: Callable[..., LLM]) -> None:
    """Two requests that just fit run to their end, with as many guesses as there is room for."""
    prompts = [ids(8, seed) for seed in range(2)]
    expected = run(make_llm(), prompts)
    # 31 tokens with keys each, at the end: 16 pages of 4.
    llm = use(make_llm(num_kv_pages=16), Oracle(texts_of(expected), max_tokens=8, wrong=0.5))
    llm.engine.step_log = []
    assert texts_of(run(llm, prompts)) == texts_of(expected)
    assert llm.stats()["preemptions"] == 0
    stats = llm.engine.draft_stats
    assert stats is not None
    assert stats.num_accepted > 0


def test_lengths_at_the_limit(make_llm: Callable[..., LLM]) -> None:
    """Pins: a draft ran past the longest context, or the answer was cut elsewhere."""
    params = GREEDY.replace(max_tokens=None)
    expected = run(make_llm(max_model_len=32), [ids(5)], params)
    llm = use(make_llm(max_model_len=32), Oracle(texts_of(expected), max_tokens=8, wrong=0.0))
    got = run(llm, [ids(5)], params)
    assert facts(got) == facts(expected)
    assert len(got[0].outputs[0].token_ids) == 27


def test_tokens_of_one_step_share_its_time(make_llm: Callable[..., LLM]) -> None:
    params = GREEDY.replace(max_tokens=9)
    expected = run(make_llm(), [ids(6)], params)
    llm = use(make_llm(), Oracle(texts_of(expected), max_tokens=3, wrong=0.0))
    clock = llm.engine.clock = VirtualClock()
    llm.engine.add_request("a", ids(6), params)
    outputs: list[RequestOutput] = []
    while llm.engine.has_unfinished:
        clock.advance(1.0)
        outputs = llm.engine.step()
    metrics = outputs[0].outputs[0].metrics
    assert metrics is not None
    assert metrics.token_times_s == [1.0, 2.0, 2.0, 2.0, 2.0, 3.0, 3.0, 3.0, 3.0]
    assert metrics.first_token_s == 1.0
    assert metrics.tpot_s == pytest.approx(2 / 8)


class BoomError(Exception):
    """A failure inside a step."""


@pytest.mark.parametrize("place", ["propose", "second token", "commit"])
def test_a_failing_step_leaks_nothing(
    make_llm: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """What was kept before the failure is reported; pages and queues are whole."""
    prompts = [ids(6, seed) for seed in range(3)]
    expected = run(make_llm(), prompts)
    oracle = Oracle(texts_of(expected), max_tokens=3, wrong=0.0)
    llm = use(make_llm(), oracle)
    engine = llm.engine
    target, name, after = {
        "propose": (oracle, "propose", 1),
        "second token": (engine.steps.chooser, "_append", 3 + 3 + 1),
        "commit": (engine.scheduler, "commit", 2),
    }[place]
    real, calls = getattr(target, name), iter(range(10**6))

    def failing(*args: Any) -> Any:
        if next(calls) == after:
            raise BoomError
        return real(*args)

    monkeypatch.setattr(target, name, failing)
    for i, prompt in enumerate(prompts):
        engine.add_request(str(i), prompt, GREEDY)
    done: dict[str, RequestOutput] = {}
    with pytest.raises(BoomError):
        while engine.has_unfinished:
            engine.step()
    engine.scheduler.check_integrity()
    while engine.has_unfinished:
        done |= {o.request_id: o for o in engine.step() if o.finished}
    assert engine.cache.pool.num_used == 0
    for i, output in enumerate(expected):
        completion = done[str(i)].outputs[0]
        whole = output.outputs[0].token_ids
        # A drafter fails before anything is planned: the next step goes on.
        assert completion.finish_reason == ("length" if place == "propose" else "error")
        assert completion.token_ids == whole[: len(completion.token_ids)]
        assert (completion.token_ids == whole) == (place == "propose")
    assert texts_of(run(llm, prompts)) == texts_of(expected)


def test_many_rows_span_blocks_of_logits(
    make_llm: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of one sequence may lie in two blocks, wherever the border is."""
    prompts = [ids(6, seed) for seed in range(4)]
    expected = run(make_llm(), prompts, GREEDY.replace(logprobs=1))
    for rows in (1, 2, 3, 5, 7):
        monkeypatch.setattr("infopt.engine.runner.LOGIT_BLOCK_ROWS", rows)
        llm = use(make_llm(), Oracle(texts_of(expected), max_tokens=4, wrong=0.2))
        assert facts(run(llm, prompts, GREEDY.replace(logprobs=1))) == facts(expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"method": "ngram"},
        {"method": "suffix"},
        {"method": "early_exit", "skip_layers": [13, 14, 15, 16, 17], "acceptance": "equal"},
    ],
)
def test_real_model_is_lossless(smollm2_path: Any, options: dict[str, Any]) -> None:
    """Greedy and seeded text of the real model over texts that repeat themselves."""
    from infopt.corpus import docs_text

    text = docs_text()
    prompts = [
        f"{text[i : i + 300]}\n\nThe same once more:\n\n{text[i : i + 80]}" for i in (0, 900)
    ]
    params = [SamplingParams(temperature=0, max_tokens=40), SamplingParams(seed=1, max_tokens=40)]
    common = {"dtype": "float32", "max_model_len": 1024, "kv_cache_memory_gib": 0.2}
    with LLM(str(smollm2_path), **common) as llm:
        expected = facts(run(llm, prompts, params))
    with LLM(str(smollm2_path), speculative=options, check_integrity=True, **common) as llm:
        assert facts(run(llm, prompts, params)) == expected
        assert llm.stats()["speculative"]["accepted_tokens"] > 10
