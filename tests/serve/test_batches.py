"""Requests that share batches, pages and the queue: none changes or blocks another one."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

PATH = "/v1/completions"
PROMPT = list(range(40, 60))


def ids_of(choice: dict[str, Any]) -> list[str]:
    """Return the tokens of an answer, which say more than its text."""
    return choice["logprobs"]["tokens"]


class TestNeighbours:
    def test_a_seeded_request_beside_one_without_a_seed(self, server):
        """On a CPU a seeded request changed as soon as an unseeded one shared its batch."""
        options = {"temperature": 0.9, "max_tokens": 24, "ignore_eos": True, "logprobs": 0}
        alone = ids_of(server.complete(PROMPT, seed=11, **options)["choices"][0])
        others = set()
        with ThreadPoolExecutor(2) as pool:
            for _ in range(5):
                server.engine.reset_prefix_cache()
                seeded = pool.submit(server.complete, PROMPT, seed=11, **options)
                free = pool.submit(server.complete, PROMPT, **options)
                assert ids_of(seeded.result()["choices"][0]) == alone
                others.add(tuple(ids_of(free.result()["choices"][0])))
        assert len(others) == 5

    def test_greedy_alone_together_and_one_after_the_other(self, server, slow):
        """Concurrent answers differed from serial ones, and rows admitted later differed again."""
        options = {"temperature": 0, "max_tokens": 128, "ignore_eos": True, "logprobs": 0}
        alone = server.complete(PROMPT, **options)["choices"][0]
        slow(server.engine, 0.002)
        with ThreadPoolExecutor(8) as pool:
            together = [pool.submit(server.complete, PROMPT, **options) for _ in range(4)]
            staggered = []
            for _ in range(4):
                time.sleep(0.05)
                staggered.append(pool.submit(server.complete, PROMPT, **options))
            answers = [f.result()["choices"][0] for f in (*together, *staggered)]
        assert all(answer["logprobs"] == alone["logprobs"] for answer in answers)
        assert all(answer["text"] == alone["text"] for answer in answers)
        assert len(alone["logprobs"]["tokens"]) == 128

    def test_a_mixed_crowd_leaves_every_page_free_or_cached(self, server):
        """Used pages grew with every request that ended in some way, until none were left."""
        kinds: list[dict[str, Any]] = [
            {"stop": ["e", " "], "max_tokens": 12},
            {"max_tokens": 6, "ignore_eos": True},
            {"n": 3, "max_tokens": 5, "temperature": 2.0},
            {"structured_outputs": {"json": {"enum": ["a", 1]}}, "max_tokens": 30},
            {"echo": True, "logprobs": 1, "max_tokens": 0},
            {"prompt": [5, 400]},
            {"structured_outputs": {"regex": "("}},
            {"max_tokens": 4000},
        ]
        draw = random.Random(3)

        def ask(index: int) -> int:
            prompt = [draw.randint(5, 300) for _ in range(draw.randint(1, 60))]
            body = {"prompt": prompt, "seed": index} | kinds[index % len(kinds)]
            return server.post(PATH, **body).status_code

        with ThreadPoolExecutor(16) as pool:
            statuses = list(pool.map(ask, range(200)))
        assert (statuses.count(200), statuses.count(400)) == (125, 75)
        server.wait_idle()
        server.engine.scheduler.check_integrity()


class TestPool:
    """A pool of 64 tokens and chunks of 8: what does not fit says so, what fits gets its turn."""

    @pytest.fixture
    def tight(self, start_server):
        return start_server(
            {
                "block_size": 4,
                "num_kv_pages": 16,
                "max_num_batched_tokens": 8,
                "max_num_seqs": 4,
                "max_model_len": 200,
            }
        )

    @pytest.mark.parametrize("streams", [False, True])
    def test_an_oversized_request_blocks_nobody(self, tight, streams):
        """It stayed first in the queue for ever, or the error quoted the length of a chunk."""
        limit = tight.engine.checker.pool_tokens
        with ThreadPoolExecutor(2) as pool:
            beside = pool.submit(tight.complete, PROMPT, max_tokens=8, ignore_eos=True)
            answer = tight.post(PATH, prompt=[5] * (limit + 1), max_tokens=2, stream=streams)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
            assert f"{limit + 1} tokens" in error["message"]
            assert f"holds {limit}" in error["message"]
            assert beside.result()["usage"]["completion_tokens"] == 8
        later = tight.complete([5] * 5, max_tokens=3, ignore_eos=True)
        assert later["usage"]["completion_tokens"] == 3

    def test_two_that_do_not_fit_together_both_finish(self, tight):
        """They preempted each other for ever."""
        options = {"max_tokens": 45, "ignore_eos": True, "temperature": 0, "logprobs": 0}
        prompts = [PROMPT[:10], PROMPT[10:]]
        alone = [tight.complete(prompt, **options)["choices"][0] for prompt in prompts]
        tight.engine.reset_prefix_cache()
        with ThreadPoolExecutor(2) as pool:
            both = list(pool.map(lambda p: tight.complete(p, **options)["choices"][0], prompts))
        assert [choice["logprobs"] for choice in both] == [c["logprobs"] for c in alone]
        assert {choice["finish_reason"] for choice in both} == {"length"}
        assert tight.engine.stats.num_preemptions <= 4

    def test_an_answer_ends_where_the_pool_does(self, tight):
        limit = tight.engine.checker.pool_tokens
        answer = tight.complete(PROMPT[:10], max_tokens=limit, ignore_eos=True)
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["total_tokens"] == limit

    def test_scores_of_a_preempted_prompt(self, tight, server, monkeypatch):
        """Values of the first chunks were lost, or came out before the prompt was done."""
        fields: dict[str, Any] = {"echo": True, "logprobs": 1, "max_tokens": 2, "temperature": 0}
        fields |= {"prompt": PROMPT, "ignore_eos": True}
        expected = server.complete(**fields)["choices"][0]["logprobs"]
        engine = tight.engine
        step, taken_away = engine.step, []

        def preempting() -> Any:
            outputs = step()
            if not taken_away and engine.scheduler.running:
                take_pages_away(engine)
                taken_away.append(True)
            return outputs

        monkeypatch.setattr(engine, "step", preempting)
        events = tight.stream(PATH, **fields)
        assert taken_away
        assert engine.stats.num_steps == 4  # a chunk that is found again, two new ones, a decode
        pieces = [choice for event in events for choice in event["choices"]]
        assert len(pieces[0]["logprobs"]["tokens"]) == len(PROMPT) + 1
        for key, values in expected.items():
            assert [v for piece in pieces for v in piece["logprobs"][key]] == values


def take_pages_away(engine: Any) -> None:
    """Preempt whatever runs, between two steps."""
    from infopt.engine.step_plan import StepPlan

    plan = StepPlan()
    for sequence in list(engine.scheduler.running):
        engine.scheduler._preempt(sequence, plan)
    engine.scheduler.check_integrity()
