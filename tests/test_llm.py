"""`LLM`: shapes of what comes back, and bad input that leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from infopt import LLM, EngineConfig, SamplingParams
from infopt.errors import ConfigError, InfoptError, PromptError, PromptTooLongError

GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
USER = {"role": "user", "content": "add two numbers"}


def options(**changes):
    return {
        "dtype": "float32",
        "backend": "reference",
        "block_size": 4,
        "num_kv_pages": 100,
        "max_model_len": 128,
    } | changes


@pytest.fixture(scope="module")
def llm(tiny_model_dir) -> Iterator[LLM]:
    with LLM(str(tiny_model_dir("llama")), **options()) as model:
        yield model


@pytest.fixture(autouse=True)
def _leaves_nothing_behind(llm: LLM) -> Iterator[None]:
    yield
    assert not llm.engine.has_unfinished
    assert llm.engine.cache.pool.num_used == 0
    assert not llm.engine._requests


# ------------------------------------------------------------------ generate


@pytest.mark.parametrize(
    ("prompts", "count"),
    [
        ("a page", 1),
        ([5, 6, 7], 1),
        (["a page", "of a book"], 2),
        ([[5, 6], [7]], 2),
        (["a page", [5, 6], "x"], 3),
        (("a page",), 1),
        ([], 0),
    ],
)
def test_prompts_are_text_or_ids_or_a_list_of_either(llm: LLM, prompts, count: int) -> None:
    outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
    assert len(outputs) == count
    for output in outputs:
        assert output.finished
        (completion,) = output.outputs
        assert len(completion.token_ids) == 4
        assert completion.text == llm.tokenizer.decode(completion.token_ids)
        assert output.metrics.ttft_s is not None


def test_text_and_its_ids_give_the_same_answer_in_the_order_given(llm: LLM) -> None:
    texts = ["def add(a, b):", "x", "The quick brown fox jumps over"]
    by_text = llm.generate(texts, GREEDY)
    by_ids = llm.generate([llm.tokenizer.encode(text) for text in texts], GREEDY)
    assert [o.prompt for o in by_text] == texts
    assert [o.prompt for o in by_ids] == [None] * 3
    for one, other in zip(by_text, by_ids, strict=True):
        assert one.prompt_token_ids == other.prompt_token_ids
        assert one.outputs[0].token_ids == other.outputs[0].token_ids


def test_every_prompt_can_have_its_own_params(llm: LLM) -> None:
    params = [GREEDY.replace(max_tokens=count, n=1 + count % 2) for count in (1, 2, 3)]
    outputs = llm.generate(["a"] * 3, params, use_tqdm=False)
    assert [[len(c.token_ids) for c in o.outputs] for o in outputs] == [[1] * 2, [2], [3] * 2]
    with pytest.raises(PromptError, match="3 prompts, but 2"):
        llm.generate(["a"] * 3, params[:2])


def test_default_params_sample_sixteen_tokens(llm: LLM) -> None:
    (output,) = llm.generate("a", use_tqdm=False)
    assert 1 <= len(output.outputs[0].token_ids) <= 16


@pytest.mark.parametrize(
    "prompts",
    ["", [[]], ["a", ""], ["a", [10**6]], [5, "a"], ["a", 5], [None], [[1.5]], [[[1]]], None, 5],
)
def test_one_bad_prompt_means_that_nothing_runs(llm: LLM, prompts) -> None:
    """Pins: the requests before a refused one were reported to the next call, which failed."""
    before = llm.engine.stats.num_steps
    with pytest.raises(PromptError):
        llm.generate(prompts, GREEDY)
    assert llm.engine.stats.num_steps == before
    assert not llm.engine.has_unfinished
    assert len(llm.generate("a", GREEDY)) == 1


def test_one_long_prompt_among_good_ones(llm: LLM) -> None:
    with pytest.raises(PromptTooLongError, match=r"200 tokens.*128"):
        llm.generate([[5] * 3, [5] * 200], GREEDY)
    assert not llm.engine.scheduler.has_unfinished


@pytest.mark.parametrize("params", [{"max_tokens": 3}, ["greedy"], [None], [], 5, "greedy"])
def test_params_of_another_type_are_refused(llm: LLM, params) -> None:
    with pytest.raises(InfoptError, match=r"sampling_params"):
        llm.generate(["a"], params)


def test_an_interrupted_run_can_be_repeated(llm: LLM, monkeypatch) -> None:
    expected = llm.generate(["a", "b"], GREEDY)
    calls = iter(range(100))
    real = llm.engine.runner.hidden

    def interrupted(ctx):
        if next(calls) == 2:
            raise KeyboardInterrupt
        return real(ctx)

    monkeypatch.setattr(llm.engine.runner, "hidden", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["a", "b"], GREEDY)
    again = llm.generate(["a", "b"], GREEDY)
    assert [o.outputs[0].token_ids for o in again] == [o.outputs[0].token_ids for o in expected]


def test_other_requests_of_the_engine_are_served_and_not_returned(llm: LLM) -> None:
    """Pins: a request added to the engine directly was counted as one of the call's own."""
    llm.engine.add_request("mine", [5, 6], GREEDY.replace(max_tokens=1))
    assert [len(o.outputs) for o in llm.generate(["a", "b"], GREEDY)] == [1, 1]
    assert not llm.engine.abort("mine")


# ------------------------------------------------------------------ chat


def test_chat_reads_the_template(llm: LLM) -> None:
    (one,) = llm.chat([USER], GREEDY, use_tqdm=False)
    text = "<|im_start|>user\nadd two numbers<|im_end|>\n<|im_start|>assistant\n"
    assert one.prompt_token_ids == llm.tokenizer.encode(text, add_special_tokens=False)
    two = llm.chat([[USER], [USER, {"role": "assistant", "content": "ok"}, USER]], GREEDY)
    assert two[0].outputs[0].token_ids == one.outputs[0].token_ids
    assert len(two[1].prompt_token_ids) > len(two[0].prompt_token_ids)
    (open_turn,) = llm.chat([USER], GREEDY, add_generation_prompt=False)
    assert len(open_turn.prompt_token_ids) < len(one.prompt_token_ids)


@pytest.mark.parametrize("messages", [[], "hi", USER, None, 5, [["text"]], [[{"role": "user"}, 5]]])
def test_bad_conversations_are_refused(llm: LLM, messages) -> None:
    with pytest.raises(PromptError):
        llm.chat(messages, GREEDY)


# ------------------------------------------------------------------ score and logits


def test_scores_are_the_log_softmax_of_the_logits(llm: LLM) -> None:
    texts = ["The quick brown fox", [7, 7, 9, 200, 11], [42]]
    scores = llm.score(texts, use_tqdm=False)
    assert len(scores) == 3
    for text, score in zip(texts, scores, strict=True):
        ids = llm.tokenizer.encode(text) if isinstance(text, str) else text
        logits = llm.logits(ids)
        assert score.token_ids == ids
        assert score.logprobs[0] is score.greedy_matches[0] is None
        exact = torch.log_softmax(logits.double(), -1)[:-1]
        following = torch.tensor(ids[1:], dtype=torch.int64)
        assert score.logprobs[1:] == pytest.approx(
            exact.gather(1, following.unsqueeze(1)).squeeze(1).tolist(), abs=1e-5
        )
        assert score.greedy_matches[1:] == (exact.argmax(-1) == following).tolist()


def test_scores_from_a_start_on_are_those_of_the_whole_text(llm: LLM) -> None:
    texts = [[5, 6, 7, 8, 9], [5, 6, 7], [9]]
    whole = llm.score(texts, use_tqdm=False)
    for start in (0, 1, [3, 1, 0], [5, 3, 1]):
        starts = [start] * 3 if isinstance(start, int) else start
        for all_of, some, at in zip(whole, llm.score(texts, start=start), starts, strict=True):
            assert some.token_ids == all_of.token_ids
            assert some.logprobs == [None] * at + all_of.logprobs[at:]
            assert some.greedy_matches == [None] * at + all_of.greedy_matches[at:]


@pytest.mark.parametrize("start", [-1, 4, 1.5, "a", [1], [1, 2, 4], [0, 0, -1], None])
def test_bad_starts_of_scores_are_refused(llm: LLM, start) -> None:
    requests = llm.stats()["requests"]
    with pytest.raises(InfoptError, match=r"prompt_logprobs_start|3 prompts"):
        llm.score([[5, 6, 7]] * 3, start=start, use_tqdm=False)
    assert not llm.engine.has_unfinished
    assert llm.stats()["running"] == 0, requests


def test_scores_of_one_text_come_as_a_list(llm: LLM) -> None:
    assert len(llm.score("a page")) == len(llm.score([5, 6, 7])) == 1
    assert llm.score([]) == []


def test_logits_have_a_row_per_token_and_predict_what_is_generated(llm: LLM) -> None:
    ids = [5, 9, 100, 7, 33]
    logits = llm.logits(ids)
    assert logits.shape == (5, llm.model_config.vocab_size)
    assert logits.dtype == torch.float32
    (output,) = llm.generate(ids, GREEDY)
    follow = [*ids, *output.outputs[0].token_ids]
    rows = llm.logits(follow)
    assert rows.argmax(-1).tolist()[4:-1] == output.outputs[0].token_ids
    assert torch.equal(rows[:5], logits)


def test_a_text_may_fill_the_model(llm: LLM) -> None:
    ids = [5 + i % 90 for i in range(128)]
    assert len(llm.score([ids])[0].logprobs) == len(llm.logits(ids)) == 128
    for call in (llm.score, llm.logits):
        with pytest.raises(PromptTooLongError, match=r"129 tokens.*128"):
            call([*ids, 5])


@pytest.mark.parametrize("bad", [[], [320], [-1], [1.5], ["a", "b"], "text", 5, None])
def test_bad_ids_for_logits_are_refused(llm: LLM, bad) -> None:
    with pytest.raises(PromptError):
        llm.logits(bad)


@pytest.mark.parametrize("bad", ["", [[]], [[320]], [[1.5]], ["a", None], None, 5])
def test_bad_texts_for_scores_are_refused(llm: LLM, bad) -> None:
    with pytest.raises(PromptError):
        llm.score(bad)


# ------------------------------------------------------------------ stats and construction


def test_stats_add_up(tiny_model_dir) -> None:
    with LLM(str(tiny_model_dir("llama")), **options()) as llm:
        llm.generate([[5, 6, 7, 8, 9, 10]] * 2, GREEDY)
        llm.generate([[5, 6, 7, 8, 9, 10]], GREEDY.replace(n=2))
        stats = llm.stats()
        assert (stats["requests"], stats["finished"]) == (3, {"length": 4})
        assert (stats["running"], stats["waiting"], stats["preemptions"]) == (0, 0, 0)
        assert (stats["prompt_tokens"], stats["generated_tokens"]) == (24, 16)
        assert stats["cached_tokens"] == 8
        assert stats["prefix_hit_rate"] == pytest.approx(8 / 24)
        pages = stats["pages"]
        assert pages["total"] == 100 == pages["free"] + pages["cached"]
        memory = stats["memory"]
        assert memory["kv_pool_bytes"] == 101 * memory["page_bytes"]  # the null page counts
        assert memory["kv_bytes_per_token"] == 2 * 3 * 2 * 16 * 4
        weights = llm.model_config.num_parameters - (2 * 3 + 1) * 64  # norms apart
        assert memory["weights_bytes"] == 4 * weights
        assert {op["backend"] for op in stats["ops"].values()} == {"reference"}
        assert stats["batch_invariant"] is True
        llm.reset_prefix_cache()
        assert llm.stats()["pages"]["free"] == 100
        assert llm.generate([[5, 6, 7, 8, 9, 10]], GREEDY)[0].num_cached_tokens == 0


def test_a_config_or_a_model_but_not_both(tiny_model_dir) -> None:
    folder = str(tiny_model_dir("llama"))
    config = EngineConfig(folder, **options())
    with LLM(config=config, seed=9) as llm:
        assert llm.config == config.replace(seed=9)
        assert llm.model_config.family == "llama"
    with pytest.raises(ConfigError, match="either a model or a config"):
        LLM(folder, config=config)
    with pytest.raises(ConfigError, match="either a model or a config"):
        LLM()
    with pytest.raises(ConfigError, match="EngineConfig, got dict"):
        LLM(config={"model": folder})
    llm.close()  # a second time


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"max_num_seq": 4}, "max_num_seq"),
        ({"quantization": "int5"}, "quantization"),
        ({"max_model_len": 4096}, "max_model_len"),
        ({"kv_cache_memory_gib": 0.0, "num_kv_pages": None}, "kv_cache_memory_gib"),
        ({"dtype": "fp32"}, "dtype"),
    ],
)
def test_what_cannot_be_had_is_refused_by_name(tiny_model_dir, changes, field: str) -> None:
    with pytest.raises(InfoptError) as caught:
        LLM(str(tiny_model_dir("llama")), **options(**changes))
    assert caught.value.field == field


def test_without_a_tokenizer_only_ids_work(tiny_model_dir) -> None:
    with LLM(str(tiny_model_dir("llama")), **options(skip_tokenizer_init=True)) as llm:
        assert len(llm.generate([5, 6], GREEDY)[0].outputs[0].token_ids) == 4
        assert len(llm.score([[5, 6]])[0].logprobs) == 2
        for call in (lambda: llm.tokenizer, lambda: llm.chat([USER], GREEDY)):
            with pytest.raises(ConfigError, match="skip_tokenizer_init"):
                call()
        with pytest.raises(PromptError, match="skip_tokenizer_init"):
            llm.generate("text", GREEDY)
