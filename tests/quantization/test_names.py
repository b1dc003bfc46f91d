"""Names of schemes."""

from __future__ import annotations

import pytest

from infopt.errors import ConfigError
from infopt.quantization.coded import WeightFormat
from infopt.quantization.names import EXAMPLES, parse
from infopt.quantization.scheme import check_name


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_are_names(name: str) -> None:
    recipe = parse(name)
    assert recipe is not None
    assert recipe.name == name
    check_name(name)


def test_options_of_integer_schemes() -> None:
    recipe = parse("int4-gptq-g128-asym-inorder-a8")
    assert recipe is not None
    assert recipe.weight == WeightFormat(4, 128, symmetric=False)
    assert (recipe.method, recipe.act_order, recipe.activation.kind) == ("gptq", False, "dynamic")
    assert recipe.head == WeightFormat(8)


@pytest.mark.parametrize(
    ("name", "weight", "needs_calibration"),
    [
        ("int8", WeightFormat(8), False),
        ("int8-gptq", WeightFormat(8), True),
        ("int4-rtn", WeightFormat(4, 64), False),
        ("int4-rtn-channel", WeightFormat(4), False),
        ("int4-awq-g32", WeightFormat(4, 32), True),
        ("int2-rtn-g64", WeightFormat(2, 64), False),
        ("w8a8-dynamic", WeightFormat(8), False),
        ("w8a8-dynamic-smooth", WeightFormat(8), True),
        ("w8a8-static", WeightFormat(8), True),
        ("fp8", WeightFormat(8, number="float"), False),
        ("fp8-static", WeightFormat(8, number="float"), True),
        ("fp8-weight", WeightFormat(8, number="float"), False),
        ("mixed-4.5", WeightFormat(4, 64), True),
    ],
)
def test_what_names_stand_for(name: str, weight: WeightFormat, needs_calibration: bool) -> None:
    recipe = parse(name)
    assert recipe is not None
    assert (recipe.weight, recipe.needs_calibration) == (weight, needs_calibration)


def test_experts_can_have_a_scheme_of_their_own() -> None:
    recipe = parse("int8+experts-int4-gptq-g32")
    assert recipe is not None
    assert recipe.needs_calibration
    assert recipe.weight == recipe.head == WeightFormat(8)
    expert = recipe.of("model.layers.1.mlp.experts.3.up_proj")
    assert (expert.name, expert.weight) == ("int4-gptq-g32", WeightFormat(4, 32))
    for other in ("self_attn.q_proj", "mlp.shared_expert.up_proj", "mlp.up_proj"):
        assert recipe.of(f"model.layers.1.{other}") is recipe
    rounded = parse("int4-rtn-g32+experts-int8")
    assert rounded is not None
    assert not rounded.needs_calibration


def test_the_head_is_never_calibrated() -> None:
    recipe = parse("w8a8-static")
    assert recipe is not None
    assert recipe.activation.kind == "static"
    assert recipe.head_activation.kind == "dynamic"


@pytest.mark.parametrize(
    "name",
    [
        "int5-rtn-g64",
        "int4-rtn-g0",
        "int4-foo",
        "int4-g64-awq",
        "w8a8",
        "fp4",
        "mixed",
        "q4",
        "int8+int8",
        "none+experts-int8",
        "int8+experts-",
        "+experts-int8",
        "int8+experts-mixed-5",
        "mixed-5+experts-int8",
        "int8+experts-int8+experts-int8",
    ],
)
def test_other_names_are_refused_with_the_nearest(name: str) -> None:
    assert parse(name) is None
    with pytest.raises(ConfigError, match="Unknown quantization") as caught:
        check_name(name)
    assert caught.value.field == "quantization"
    assert "int4-rtn-g64" in str(caught.value)
