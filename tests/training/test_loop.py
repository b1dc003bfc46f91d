"""A training is repeatable, learns, and goes on where it was interrupted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from infopt.errors import CheckpointError, ConfigError
from infopt.training import loop
from infopt.training.loop import Trainer
from infopt.training.recipes import Recipe
from infopt.training.text import TokenizedCorpus
from infopt.training.validation import cut_windows

MakeTrainer = Callable[..., Trainer]


@pytest.fixture
def make_trainer(tokenized: TokenizedCorpus, small_recipe: Callable[..., Recipe]) -> MakeTrainer:
    def make(name: str = "tiny-dense", **options: Any) -> Trainer:
        heldout = cut_windows(tokenized.heldout["docs"], 2)
        options = {"seed": 0, "num_steps": 3} | options
        return Trainer(small_recipe(name), tokenized.train, heldout, **options)

    return make


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    return trainer.model.state_dict()


def assert_same(one: Trainer, other: Trainer) -> None:
    assert one.curve == other.curve
    for name, values in weights(one).items():
        assert torch.equal(values, weights(other)[name]), name


@pytest.mark.parametrize("name", ["tiny-dense", "tiny-moe"])
def test_the_same_seed_gives_the_same_bits(make_trainer: MakeTrainer, name: str) -> None:
    trainers = [make_trainer(name, seed=seed) for seed in (5, 5, 6)]
    for trainer in trainers:
        trainer.run(show_progress=False)
    assert_same(trainers[0], trainers[1])
    assert trainers[0].curve != trainers[2].curve
    assert [point.step for point in trainers[0].curve] == [1, 2, 3]


def test_the_last_part_has_longer_windows(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(num_steps=10)
    shapes = [tuple(trainer._batch(step).shape) for step in range(10)]
    assert shapes == [(8, 33)] * 8 + [(4, 65)] * 2


def test_the_loss_falls_and_is_looked_at_on_heldout_text(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(num_steps=40)
    trainer.run(show_progress=False)
    assert trainer.curve[0].loss == pytest.approx(6.93, abs=0.2)  # ln 1024: it knows nothing yet
    assert trainer.curve[-1].loss < 6.2
    assert [p.step for p in trainer.curve if p.heldout_loss is not None] == [40]
    assert trainer.curve[-1].heldout_loss == pytest.approx(trainer.curve[-1].loss, abs=1.0)
    assert trainer.curve[-1].tokens == 40 * 256


def test_an_interrupted_training_ends_as_if_it_had_not_been(
    make_trainer: MakeTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "_SAVE_EVERY", 2)
    whole = make_trainer(num_steps=6)
    whole.run(show_progress=False)
    state = tmp_path / "state.pt"
    stopped = make_trainer(num_steps=6, state_path=state)
    monkeypatch.setattr(stopped, "_heldout_loss", lambda done: 1 / 0 if done == 5 else None)
    with pytest.raises(ZeroDivisionError):
        stopped.run(show_progress=False)
    resumed = make_trainer(num_steps=6, state_path=state)
    assert len(resumed.curve) == 4
    resumed.run(show_progress=False)
    assert_same(whole, resumed)


def test_the_state_of_another_training_is_refused(
    make_trainer: MakeTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Going on from it would give weights that no seed and recipe describe."""
    monkeypatch.setattr(loop, "_SAVE_EVERY", 1)
    state = tmp_path / "state.pt"
    make_trainer(num_steps=2, state_path=state).run(show_progress=False)
    with pytest.raises(ConfigError, match="another recipe, seed or number of steps") as error:
        make_trainer(num_steps=2, seed=1, state_path=state)
    assert error.value.field == "out"
    with pytest.raises(ConfigError):
        make_trainer(num_steps=3, state_path=state)


def test_a_damaged_state_is_refused(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    state = tmp_path / "state.pt"
    state.write_bytes(b"no state")
    with pytest.raises(CheckpointError, match="holds no state of a training"):
        make_trainer(state_path=state)


def test_router_losses_change_routers_alone_at_first(
    make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without them, experts that nobody chose would stay unchosen."""
    trainer = make_trainer("tiny-moe")
    trainer._backward(trainer._batch(0))
    with_losses = {n: p.grad.clone() for n, p in trainer.model.named_parameters()}
    trainer.model.zero_grad()
    monkeypatch.setattr(trainer, "_router_loss", lambda output: torch.zeros(()))
    trainer._backward(trainer._batch(0))
    gates = {
        n for n, p in trainer.model.named_parameters() if not torch.equal(p.grad, with_losses[n])
    }
    assert "model.layers.1.mlp.gate.weight" in gates
    # What comes before the last router also moves its logits; what comes after it cannot.
    assert not [n for n in gates if "layers.1.mlp.experts" in n or "layers.1.mlp.shared" in n]
