"""Random mixtures beside dense models: what is written, what is read, and what is compared."""

from __future__ import annotations

import math

import pytest
import torch

from infopt.bench.moe_pair import (
    compare_decoding,
    expected_weights,
    grouped_gain,
    moe_size,
    predicted_ratio,
    read_weights,
)
from infopt.bench.moe_pair_run import REFERENCE, SHAPES, measure, token_requests
from infopt.bench.random_checkpoint import RandomShape, write_random_checkpoint
from infopt.errors import ConfigError, MeasurementError
from infopt.llm import LLM
from infopt.models.config import ModelConfig

SMALL = {"num_layers": 2, "hidden_size": 64, "num_heads": 4, "vocab_size": 80}
SMALL_SHAPES = {
    "dense": RandomShape(intermediate_size=128, **SMALL),
    "moe": RandomShape(intermediate_size=64, num_experts=8, top_k=2, **SMALL),
    "large": RandomShape(intermediate_size=512, **SMALL),
}
OPTIONS = {
    "skip_tokenizer_init": True,
    "dtype": "float32",
    "max_num_seqs": 8,
    "max_model_len": 64,
    "num_kv_pages": 64,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    at = tmp_path_factory.mktemp("random")
    return {name: write_random_checkpoint(at / name, shape) for name, shape in SMALL_SHAPES.items()}


@pytest.fixture(scope="module")
def llms(folders):
    opened = {name: LLM(str(folder), **OPTIONS) for name, folder in folders.items()}
    yield opened
    for llm in opened.values():
        llm.close()


def config_of(llm: LLM) -> ModelConfig:
    assert isinstance(llm.model_config, ModelConfig)
    return llm.model_config


def test_the_default_shapes_have_equal_work_and_no_cache_holds_them():
    def weights(shape: RandomShape, num_experts: int) -> int:
        attention = shape.hidden_size * shape.hidden_size * 5 // 2
        mlp = 3 * shape.hidden_size * shape.intermediate_size * num_experts
        return shape.num_layers * (attention + mlp)

    dense = weights(SHAPES[REFERENCE], 1)
    for name, shape in SHAPES.items():
        total = weights(shape, shape.num_experts or 1)
        assert 2 * total >= 256e6, f"{name} fits into a cache"
        if shape.num_experts:
            assert weights(shape, shape.top_k) == dense
            assert total == weights(SHAPES["dense-large"], 1)
    assert max(shape.num_experts for shape in SHAPES.values()) >= 32


def test_a_checkpoint_is_what_its_shape_says_and_its_seed_decides(tmp_path, llms):
    moe = config_of(llms["moe"])
    assert moe.moe is not None
    assert (moe.moe.num_experts, moe.moe.top_k) == (8, 2)
    assert moe.moe.is_sparse == (True, True)
    names = {file.name for file in (tmp_path / "a").glob("*")}
    written = [
        write_random_checkpoint(tmp_path / name, SMALL_SHAPES["moe"], seed)
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    assert not names
    first, same, other = (path.joinpath("model.safetensors").read_bytes() for path in written)
    assert first == same
    assert first != other


def test_equal_work_reads_equal_weights_for_one_token_but_for_the_router(llms):
    dense, moe, large = (config_of(llms[name]) for name in ("dense", "moe", "large"))
    routers = 2 * 8 * 64
    assert expected_weights(moe, 1) == read_weights(dense, 0) + routers
    assert read_weights(moe, 8) == read_weights(large, 0) + routers
    assert moe_size(moe).active == expected_weights(moe, 1)
    # Norms and the rows of the embedding that are looked up are all that a step does not multiply.
    assert moe.num_active_parameters - expected_weights(moe, 1) == 5 * 64


def test_predictions_begin_near_one_and_end_at_the_large_model(llms):
    dense, moe, large = (config_of(llms[name]) for name in ("dense", "moe", "large"))
    routers = 2 * 8 * 64 / read_weights(dense, 0)
    assert predicted_ratio(moe, dense, 1) == pytest.approx(1 + routers)
    assert predicted_ratio(large, dense, 1) == predicted_ratio(large, dense, 64)
    assert predicted_ratio(moe, dense, 500) == pytest.approx(
        predicted_ratio(large, dense, 1) + routers
    )
    with pytest.raises(MeasurementError, match="must be dense"):
        predicted_ratio(dense, moe, 1)
    with pytest.raises(MeasurementError, match="has no experts"):
        moe_size(dense)


def test_decode_steps_are_compared_in_pairs(llms):
    point = compare_decoding(llms["dense"], llms["moe"], token_requests(80, 4, 17, 4), repeats=3)
    assert point.batch == 4
    assert point.ratio.num_pairs == 3
    assert 0 < point.ratio.low <= point.ratio.median <= point.ratio.high
    assert min(point.reference_s, point.step_s) > 0


def test_requests_that_never_decode_together_are_refused(llms):
    with pytest.raises(MeasurementError, match="9 requests never decoded together"):
        compare_decoding(llms["dense"], llms["moe"], token_requests(80, 9, 4, 2), repeats=1)


def test_grouped_experts_are_compared_with_a_loop_over_the_same_products(llms):
    gain = grouped_gain(llms["moe"], num_rows=8, repeats=2)
    assert gain.num_pairs == 2
    assert math.isfinite(gain.median)
    with pytest.raises(MeasurementError, match="no experts"):
        grouped_gain(llms["dense"], num_rows=8, repeats=2)


def test_the_whole_comparison_has_a_point_per_batch(folders):
    options = {**OPTIONS, "max_num_batched_tokens": 256}
    found = measure({REFERENCE: folders["dense"], "moe": folders["moe"]}, [1, 2], 2, **options)
    assert list(found) == ["moe"]
    assert [point["batch"] for point in found["moe"]["decode"]] == [1, 2]
    assert found["moe"]["grouped_over_loop"]["num_pairs"] == 2


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"intermediate_size": 0}, "intermediate_size"),
        ({"intermediate_size": True}, "intermediate_size"),
        ({"num_experts": 4}, "top_k"),
        ({"top_k": 2}, "top_k"),
        ({"num_experts": 2, "top_k": 3}, "top_k"),
        ({"num_heads": 6}, "num_heads"),
        ({"hidden_size": 100, "num_heads": 8}, "num_heads"),
    ],
)
def test_impossible_shapes_are_refused(values, field):
    with pytest.raises(ConfigError) as caught:
        RandomShape(**{"intermediate_size": 64, **values})
    assert caught.value.field == field


def test_prompts_differ_and_come_again():
    first, again = token_requests(80, 4, 17, 3), token_requests(80, 4, 17, 3)
    assert first == again
    assert len({tuple(r.prompt_token_ids) for r in first}) == 4
    assert torch.tensor([r.prompt_token_ids for r in first]).max() < 80
