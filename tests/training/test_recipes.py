"""What the family promises: shapes that quantize, equal active parameters, a small draft."""

from __future__ import annotations

import pytest
import torch

from infopt.errors import ConfigError
from infopt.training import RECIPES, recipe_of
from infopt.training.model import build_model, num_active_parameters, num_parameters

NAMES = sorted(RECIPES)


def test_the_family_has_three_models() -> None:
    assert NAMES == ["tiny-dense", "tiny-draft", "tiny-moe"]
    assert all(RECIPES[name].name == name for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_shapes_divide_into_quantization_groups(name: str) -> None:
    """Groups of 128 columns are the common choice, and kernels want heads of 32 or 64."""
    model = build_model(recipe_of(name), seed=0)
    inputs = [m.in_features for m in model.modules() if isinstance(m, torch.nn.Linear)]
    inputs += [p.shape[-1] for n, p in model.named_parameters() if ".experts." in n]
    assert inputs
    assert not [size for size in inputs if size % 128]
    config = model.config
    assert config.hidden_size // config.num_attention_heads in (32, 64)
    assert config.max_position_embeddings >= 512


def test_a_token_reads_as_many_weights_in_the_moe_as_in_the_dense_model() -> None:
    dense = build_model(recipe_of("tiny-dense"), seed=0)
    moe = build_model(recipe_of("tiny-moe"), seed=0)
    assert num_active_parameters(dense) == num_parameters(dense)
    assert num_parameters(moe) > 1.5 * num_parameters(dense)
    routers = num_active_parameters(moe) / num_active_parameters(dense)
    assert 1 <= routers < 1.01


def test_the_draft_model_is_several_times_smaller() -> None:
    sizes = [num_parameters(build_model(recipe_of(f"tiny-{n}"), 0)) for n in ("dense", "draft")]
    assert sizes[0] > 4 * sizes[1]


def test_weights_follow_from_the_seed_and_leave_the_callers_random_state_alone() -> None:
    recipe = recipe_of("tiny-draft")
    before = torch.get_rng_state()
    one, same, other = (build_model(recipe, seed).lm_head.weight for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_an_unknown_name_gets_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'tiny-dense'") as error:
        recipe_of("tiny-dens")
    assert "tiny-moe" in str(error.value.remedy)
