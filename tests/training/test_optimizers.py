"""Each weight has one optimizer, the right one; the rate rises, stays and falls to nothing."""

from __future__ import annotations

import dataclasses

import pytest

from infopt.training.model import build_model
from infopt.training.muon import Muon
from infopt.training.optimizers import make_optimizers, rate_factor
from infopt.training.recipes import RECIPES, recipe_of


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_hidden_matrices_go_to_muon_and_the_rest_to_adamw(name: str) -> None:
    model = build_model(recipe_of(name), seed=0)
    muon, adamw = make_optimizers(model, recipe_of(name))
    assert isinstance(muon, Muon)
    names = {id(p): n for n, p in model.named_parameters()}
    matrices = [names.pop(id(p)) for p in muon.param_groups[0]["params"]]
    vectors = [names.pop(id(p)) for p in adamw.param_groups[0]["params"]]
    assert not names
    assert all("proj" in n for n in matrices)
    assert all(any(k in n for k in ("norm", "embed_tokens", "gate.", "_gate")) for n in vectors)
    assert not [n for n in vectors if "proj" in n]


def test_the_rate_rises_stays_and_falls() -> None:
    recipe = dataclasses.replace(recipe_of("tiny-dense"), warmup_share=0.1, decay_share=0.5)
    factors = [rate_factor(recipe, step, 100) for step in range(100)]
    assert factors[0] == pytest.approx(0.1)
    assert factors[9:51] == [1.0] * 42
    assert factors[75] == pytest.approx(0.5)
    assert factors[99] == pytest.approx(0.02)
    assert sorted(factors[50:], reverse=True) == factors[50:]


def test_a_single_step_has_a_rate() -> None:
    assert rate_factor(recipe_of("tiny-dense"), 0, 1) == 1.0
