"""GGUF files give the tensors that went into them, in canonical order and names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import quants
from gguf.constants import GGMLQuantizationType
from safetensors.torch import load_file

from infopt.errors import CheckpointError, UnsupportedModelError
from infopt.models.checkpoint import open_checkpoint
from infopt.models.gguf_checkpoint import GGUFCheckpoint, canonical_name

Q = "model.layers.1.self_attn.q_proj.weight"


def source(family: str, tiny_model_dir) -> dict[str, torch.Tensor]:
    """The tensors of the folder that a file was written from, with Gemma's one added."""
    tensors = load_file(tiny_model_dir(family) / "model.safetensors")
    if family == "gemma3_text":
        return {n: t + 1 if n.endswith("norm.weight") else t for n, t in tensors.items()}
    return tensors


@pytest.mark.parametrize(
    ("architecture", "family"),
    [("llama", "llama"), ("qwen2", "qwen2"), ("qwen3", "qwen3"), ("gemma3", "gemma3_text")],
)
def test_float_tensors_come_back_exactly(make_gguf, tiny_model_dir, architecture, family):
    expected = source(family, tiny_model_dir)
    with open_checkpoint(make_gguf(architecture)) as checkpoint:
        assert checkpoint.format == "gguf"
        assert set(checkpoint.names()) == set(expected)
        for name, tensor in expected.items():
            assert torch.equal(checkpoint.get(name), tensor), name


def test_gguf_and_safetensors_describe_the_same_architecture(make_gguf, tiny_model_dir):
    for architecture, family in (("llama", "llama"), ("qwen3", "qwen3"), ("gemma3", "gemma3_text")):
        gguf = open_checkpoint(make_gguf(architecture)).config
        folder = open_checkpoint(tiny_model_dir(family)).config
        for field in gguf.__slots__:
            found, expected = getattr(gguf, field), getattr(folder, field)
            if field == "rms_norm_eps":
                assert found == pytest.approx(expected, rel=1e-6)
            else:
                assert found == expected, field


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_blocks_are_dequantized_and_rows_put_in_order(make_gguf, tiny_model_dir, kind):
    checkpoint = open_checkpoint(make_gguf(linear_type=kind))
    original = source("llama", tiny_model_dir)[Q]
    if kind == "F16":
        expected = original.half().float()
    else:
        quant = GGMLQuantizationType[kind]
        blocks = quants.quantize(original.numpy(), quant)
        expected = torch.from_numpy(quants.dequantize(blocks, quant))
    assert torch.equal(checkpoint.get(Q), expected)


def test_q4_1_blocks_follow_their_formula(make_gguf):
    """Recompute w = d * q + m from the raw bytes, without the package."""
    name = "model.layers.0.mlp.down_proj.weight"
    checkpoint = GGUFCheckpoint(make_gguf(linear_type="Q4_1"))
    kind, blocks, shape = checkpoint.raw(name)
    assert (kind, shape) == ("Q4_1", (64, 128))
    parts = blocks.reshape(-1, 20)
    scale, minimum = (parts[:, i : i + 2].copy().view("<f2").astype(np.float32) for i in (0, 2))
    codes = np.concatenate([parts[:, 4:] & 15, parts[:, 4:] >> 4], axis=1)
    values = (scale * codes + minimum).reshape(shape)
    assert np.array_equal(checkpoint.get(name).numpy(), values)


@pytest.mark.parametrize("name", [Q, Q.replace("q_proj", "k_proj"), Q.replace("q_proj", "v_proj")])
def test_raw_rows_are_in_the_same_order_as_get(make_gguf, name):
    checkpoint = GGUFCheckpoint(make_gguf(linear_type="Q8_0"))
    _, blocks, shape = checkpoint.raw(name)
    values = quants.dequantize(blocks, GGMLQuantizationType.Q8_0).reshape(shape)
    assert np.array_equal(values, checkpoint.get(name).numpy())


def test_row_permutation_takes_file_rows_to_canonical_rows(make_gguf):
    checkpoint = GGUFCheckpoint(make_gguf())
    rows = checkpoint.row_permutation(Q)
    assert rows is not None
    assert rows[:16].tolist() == [0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15]
    assert sorted(rows) == list(range(64))
    assert checkpoint.row_permutation(Q.replace("q_proj", "v_proj")) is None
    assert GGUFCheckpoint(make_gguf("qwen3")).row_permutation(Q) is None


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_values_are_rounded_once_and_bits_never_reinterpreted(make_gguf, kind, dtype):
    """Pins the fault of a loader that chose bfloat16 while its kernel wrote float16 bits."""
    checkpoint = open_checkpoint(make_gguf(linear_type=kind))
    for name in checkpoint.names():
        found = checkpoint.get(name, dtype)
        assert found.dtype == dtype
        assert torch.equal(found, checkpoint.get(name).to(dtype)), name


def test_rope_factors_are_read_and_are_no_tensor(make_gguf):
    """Pins the fault of a loader that failed on the extra tensor rope_freqs.weight."""
    factors = np.linspace(1, 8, 8, dtype=np.float32)
    checkpoint = open_checkpoint(make_gguf(tensors={"rope_freqs.weight": factors}))
    assert checkpoint.config.rope.factors == tuple(factors.tolist())
    assert not any("rope" in name for name in checkpoint.names())


def test_rope_factors_of_the_wrong_length_are_refused(make_gguf):
    path = make_gguf(tensors={"rope_freqs.weight": np.ones(5, np.float32)})
    with pytest.raises(CheckpointError, match=r"rope_freqs\.weight.*5.*8"):
        open_checkpoint(path)


def test_an_unknown_tensor_is_refused_by_name(make_gguf):
    path = make_gguf(tensors={"blk.0.attn_sinks.weight": np.zeros(4, np.float32)})
    with pytest.raises(CheckpointError, match=r"blk\.0\.attn_sinks\.weight"):
        open_checkpoint(path)


def test_a_layer_beyond_the_last_is_refused_by_name(make_gguf):
    path = make_gguf(tensors={"blk.3.attn_norm.weight": np.zeros(64, np.float32)})
    with pytest.raises(CheckpointError, match=r"blk\.3\.attn_norm\.weight"):
        open_checkpoint(path)


@pytest.mark.parametrize(
    ("missing", "named"),
    [
        ("blk.2.ffn_up.weight", "model.layers.2.mlp.up_proj.weight"),
        ("output_norm.weight", "model.norm.weight"),
        ("token_embd.weight", "token_embd.weight"),
    ],
)
def test_a_missing_tensor_is_reported_by_name(make_gguf, missing, named):
    with pytest.raises(CheckpointError, match=named.replace(".", r"\.")):
        open_checkpoint(make_gguf(without=(missing,)))


def test_a_misshapen_tensor_is_reported_with_both_shapes(make_gguf):
    path = make_gguf(tensors={"blk.1.ffn_up.weight": np.zeros((96, 64), np.float32)})
    with pytest.raises(CheckpointError, match=r"up_proj.*\(96, 64\).*\(128, 64\)"):
        open_checkpoint(path)


def test_a_type_that_is_no_float_is_refused_when_the_file_is_opened(make_gguf):
    path = make_gguf(tensors={"blk.0.ffn_up.weight": np.zeros((128, 64), np.int8)})
    with pytest.raises(UnsupportedModelError, match=r"blk\.0\.ffn_up\.weight.*I8"):
        open_checkpoint(path)


def test_without_an_output_tensor_the_head_is_tied(make_gguf):
    checkpoint = open_checkpoint(make_gguf(without=("output.weight",)))
    assert checkpoint.config.tie_word_embeddings
    assert "lm_head.weight" not in checkpoint.names()
    with pytest.raises(CheckpointError, match=r"lm_head\.weight"):
        checkpoint.get("lm_head.weight")


def test_tensors_stay_valid_after_close(make_gguf):
    checkpoint = open_checkpoint(make_gguf())
    norm = checkpoint.get("model.norm.weight")
    before = norm.clone()
    checkpoint.close()
    norm += 1
    assert torch.equal(norm, before + 1)
    assert checkpoint.names() == []


@pytest.mark.parametrize(
    ("name", "sandwich", "expected"),
    [
        ("blk.7.ffn_norm.weight", False, "model.layers.7.post_attention_layernorm.weight"),
        ("blk.7.ffn_norm.weight", True, "model.layers.7.pre_feedforward_layernorm.weight"),
        ("blk.7.post_ffw_norm.weight", False, None),
        ("blk.x.attn_q.weight", False, None),
        ("blk.0.attn_q.scale", False, None),
    ],
)
def test_names_are_translated_or_not_known(name, sandwich, expected):
    assert canonical_name(name, sandwich_norms=sandwich) == expected


def test_smollm2_opens_as_the_llama_it_is(smollm2_path: Path):
    with GGUFCheckpoint(smollm2_path) as checkpoint:
        config = checkpoint.config
        assert (config.family, config.num_layers, config.hidden_size) == ("llama", 30, 576)
        assert (config.num_heads, config.num_kv_heads, config.head_dim) == (9, 3, 64)
        assert (config.vocab_size, config.num_real_tokens) == (49152, 49152)
        assert config.rope.theta == 100_000.0
        assert config.tie_word_embeddings
        assert (config.bos_token_id, config.eos_token_ids) == (1, (2,))
        kind, blocks, shape = checkpoint.raw("model.layers.0.self_attn.q_proj.weight")
        assert (kind, blocks.shape, shape) == ("Q4_1", (576, 360), (576, 576))
        assert checkpoint.raw("model.embed_tokens.weight")[0] == "Q8_0"
        assert config.num_parameters == 134_515_008


def test_gemma_opens_with_windows_and_all_its_block_types(gemma_path: Path):
    with GGUFCheckpoint(gemma_path) as checkpoint:
        config = checkpoint.config
        assert config.layer_kinds.count("window") == 15
        assert [i for i, kind in enumerate(config.layer_kinds) if kind == "full"] == [5, 11, 17]
        assert config.sliding_window == 512
        assert config.rope_window is not None
        assert (config.rope.theta, config.rope_window.theta) == (1e6, 1e4)
        assert config.attention_scale == 256**-0.5
        assert config.embedding_scale == pytest.approx(640**0.5)
        by_type = {checkpoint.raw(name)[0]: name for name in checkpoint.names()}
        assert set(by_type) == {"F32", "Q5_0", "Q4_K", "Q8_0", "Q6_K"}
        for kind, name in by_type.items():
            values = checkpoint.get(name)
            assert torch.isfinite(values).all(), kind
            assert values.std() > 0, kind
