"""Draft heads learn what a model writes next from its hidden states, repeatably."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from infopt import LLM, EngineConfig
from infopt.engine.clock import VirtualClock
from infopt.errors import ConfigError, DraftModelError, MeasurementError
from infopt.speculative.head import HeadNetwork, read_head
from infopt.training.head import HeadRecipe, train_head
from infopt.training.head_data import HeadData, collect
from infopt.training.head_learner import NUM_STEPS, HeadModule, agreement
from infopt.training.head_prompts import prompts


@pytest.fixture(scope="module")
def model(tiny_model_dir: Callable[..., Path]) -> Path:
    return tiny_model_dir("llama")


def engine(model: Path) -> EngineConfig:
    return EngineConfig(str(model), dtype="float32", max_model_len=192)


RECIPE = HeadRecipe(minutes=5.0, num_tokens=1200, num_draft_tokens=300, max_steps=30)


@pytest.fixture(scope="module")
def data(model: Path) -> HeadData:
    with LLM(config=engine(model)) as llm:
        return collect(llm, 1200, 0)


def test_states_lie_beside_the_tokens_they_led_to(model: Path, data: HeadData) -> None:
    """The model's own output head makes of them what it makes of the text, read in one go."""
    with LLM(config=engine(model)) as llm:
        logits = llm.engine.runner.model.logits(data.hidden).log_softmax(-1)
        given = logits.gather(1, data.tokens.unsqueeze(1)).squeeze(1)
        first = int(data.ends[0])
        prompt = next(prompts(llm.tokenizer, 0, 192 - 48))
        start = len(prompt) + 48 - 1 - first  # what all prompts begin with was left out
        (score,) = llm.score([*prompt[: start + 1], *data.tokens[:first].tolist()])
    expected = torch.tensor(score.logprobs[start + 1 :])
    torch.testing.assert_close(given[: len(expected)], expected, atol=1e-4, rtol=1e-4)
    assert len(data.tokens) == len(data.hidden) == len(data.ends) >= 1200
    assert data.num_texts == len(data.ends.unique())


def test_no_start_reaches_into_the_next_text(data: HeadData) -> None:
    starts = data.starts(NUM_STEPS)
    assert (data.ends[starts] == data.ends[starts + NUM_STEPS]).all()
    assert len(starts) == len(data.tokens) - NUM_STEPS * data.num_texts
    train, heldout = data.split(0.2)
    assert len(train.tokens) + len(heldout.tokens) == len(data.tokens)
    assert int(heldout.ends[-1]) == len(heldout.tokens)
    assert int(train.ends[-1]) == len(train.tokens)


def test_a_head_learns_and_the_engine_runs_what_was_learned(model: Path, tmp_path: Path) -> None:
    """The network on the engine's ops computes what the trained module did, at bfloat16's step."""
    trained = train_head(engine(model), tmp_path, RECIPE, show_progress=False)
    curve = trained.record["curve"]
    assert trained.record["best"]["tokens_per_pass"] > curve[0]["tokens_per_pass"] - 1e-9
    assert trained.record["num_steps"] == 30
    folder = read_head(tmp_path)
    assert folder.config.num_draft_tokens == 300
    assert folder.record == trained.record
    with LLM(config=engine(model)) as llm:
        decoder = llm.engine.runner.model
        network = HeadNetwork(folder.config, folder.weights, decoder)
        module = HeadModule(folder.config, folder.weights.token_ids, folder.weights.vocabulary, 1.0)
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                parameter.copy_(getattr(folder.weights, name))
        hidden = torch.randn(5, 64, generator=torch.Generator().manual_seed(0))
        tokens = [4, 9, 30, 200, 319]
        with torch.inference_mode():
            logits, state = network.step(hidden, tokens)
            expected = module(hidden, decoder.embedding(torch.tensor(tokens)))
        torch.testing.assert_close(state, expected, atol=1e-4, rtol=1e-4)
        rows = folder.weights.vocabulary.float()
        torch.testing.assert_close(logits, expected @ rows.T, atol=1e-3, rtol=1e-4)


def test_the_same_seed_gives_the_same_head(model: Path, tmp_path: Path) -> None:
    recipe = HeadRecipe(minutes=5.0, num_tokens=600, num_draft_tokens=50, max_steps=3)
    for name in ("a", "b"):
        train_head(engine(model), tmp_path / name, recipe, show_progress=False)
    one, other = (read_head(tmp_path / name).weights.to_dict() for name in ("a", "b"))
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


def test_time_ends_writing_and_learning(model: Path, tmp_path: Path) -> None:
    """On a clock that moves by a second per look: a minute is over long before the tokens are."""

    class Ticking(VirtualClock):
        def now(self) -> float:
            self.advance(4.0)
            return super().now()

    recipe = HeadRecipe(minutes=1.0, num_tokens=10**7, num_draft_tokens=50)
    trained = train_head(engine(model), tmp_path, recipe, clock=Ticking(), show_progress=False)
    assert 0 < trained.record["num_tokens"] < 10**5
    assert 0 < trained.record["num_steps"] < 20


def test_agreement_is_that_of_a_search_by_hand(data: HeadData, model: Path) -> None:
    with LLM(config=engine(model)) as llm:
        ids = torch.arange(320)
        table = llm.engine.runner.model.embedding(ids)
    from infopt.speculative.head import HeadConfig

    config = HeadConfig(64, 32, 320, 320, 1e-5, "x")
    module = HeadModule(config, ids, torch.randn(320, 64, dtype=torch.bfloat16), 1.0)
    shares = agreement(module, table, data, max_starts=200)
    assert len(shares) == NUM_STEPS
    starts = data.starts(NUM_STEPS)
    starts = starts[torch.linspace(0, len(starts) - 1, 200).long()]
    rows = module.vocabulary
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        state = module(data.hidden[starts], table[data.tokens[starts]])
        ours = (state.bfloat16() @ rows.T).argmax(-1)
        theirs = (data.hidden[starts + 1].bfloat16() @ rows.T).argmax(-1)
    assert shares[0] == pytest.approx(float((ours == theirs).float().mean()), abs=0.03)


def test_prompts_repeat_with_their_seed_and_fit(model: Path) -> None:
    from itertools import islice

    with LLM(config=engine(model)) as llm:
        one = list(islice(prompts(llm.tokenizer, 3, 150), 30))
        again = list(islice(prompts(llm.tokenizer, 3, 150), 30))
        other = list(islice(prompts(llm.tokenizer, 4, 150), 30))
    assert one == again != other
    assert all(0 < len(ids) <= 150 for ids in one)


@pytest.mark.parametrize(
    "options",
    [
        {"minutes": 0.0},
        {"minutes": 21.0},
        {"minutes": float("nan")},
        {"num_tokens": 10},
        {"num_draft_tokens": 1},
        {"seed": -1},
        {"seed": True},
    ],
)
def test_bad_recipes_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        HeadRecipe(**options)  # type: ignore[arg-type]


def test_a_model_that_only_repeats_itself_teaches_nothing(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infopt.training.head_data.is_degenerate", lambda tokens: True)
    with LLM(config=engine(model)) as llm:
        with pytest.raises(MeasurementError, match="only repeats itself"):
            collect(llm, 600, 0, lambda done: False)
        assert llm.engine.hidden_observer is None


def test_a_head_of_another_model_is_refused_or_announced(
    model: Path,
    tiny_model_dir: Callable[..., Path],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Another width cannot run; other weights can, and it is said."""
    recipe = HeadRecipe(minutes=5.0, num_tokens=600, num_draft_tokens=50, max_steps=1)
    train_head(engine(model), tmp_path, recipe, show_progress=False)
    speculative = {"method": "draft_head", "model": str(tmp_path)}
    with pytest.raises(DraftModelError, match="hidden_size 64, this one has 32"):
        LLM(str(tiny_model_dir("llama", hidden_size=32)), speculative=speculative)
    with LLM(str(tiny_model_dir("llama", seed=4)), speculative=speculative) as llm:
        assert llm.stats()["drafter"]["trained_for_this_model"] is False
    assert "trained for other weights" in caplog.text
    with LLM(config=engine(model).replace(speculative=speculative)) as llm:
        assert llm.stats()["drafter"]["trained_for_this_model"] is True
        assert llm.stats()["drafter"]["num_draft_tokens"] == 50
