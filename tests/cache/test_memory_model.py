"""The memory model: published sizes by family, pages against formulas, bad input."""

import pytest

from infopt.cache.memory_model import KVShape, QuantizedForm, dominance_length, kv_share, rows_kept
from infopt.cache.page_rules import PageCount, PageRules, num_sequences
from infopt.errors import ConfigError, UnsupportedModelError


def form(dtype, **sizes):
    found = QuantizedForm.named(dtype, **sizes)
    assert found is not None
    return found


def hf(layers, heads, kv_heads, head_dim, **more):
    return {
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        **more,
    }


PUBLISHED = {
    # bytes per token in float16; OPT-13B's is the figure of the vLLM paper (800 KiB), DeepSeek-V3's
    # that of its report
    "opt-13b": (
        {"num_hidden_layers": 40, "num_attention_heads": 40, "hidden_size": 5120},
        819_200,
    ),
    "opt-125m": ({"num_hidden_layers": 12, "num_attention_heads": 12, "hidden_size": 768}, 36_864),
    "llama-2-7b": (hf(32, 32, 32, 128), 524_288),
    "llama-3.1-8b": (hf(32, 32, 8, 128), 131_072),
    "mixtral-8x7b": (hf(32, 32, 8, 128), 131_072),
    "olmoe-1b-7b": (hf(16, 16, 16, 128), 131_072),
    "qwen3-0.6b": (hf(28, 16, 8, 128), 114_688),
    "llama-3.2-1b": (hf(16, 32, 8, 64), 32_768),
    "smollm2-135m": (hf(30, 9, 3, 64), 23_040),
    "tinyllama-1.1b": (hf(22, 32, 4, 64), 22_528),
    "llama-3.1-70b": (hf(80, 64, 8, 128), 327_680),
    "llama-3.1-405b": (hf(126, 128, 8, 128), 516_096),
    "deepseek-v3": (
        hf(61, 128, 128, None, hidden_size=7168, kv_lora_rank=512, qk_rope_head_dim=64),
        70_272,
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_bytes_per_token_are_the_published_ones(name):
    raw, expected = PUBLISHED[name]
    assert KVShape.of_hf(raw).bytes_per_token() == expected


def test_a_million_tokens_of_a_large_model():
    shape = KVShape.of_hf(PUBLISHED["llama-3.1-70b"][0])
    assert shape.bytes_at(10**6) == pytest.approx(327.7e9, rel=1e-3)


def test_window_layers_keep_their_window():
    kinds = ["sliding_attention"] * 15 + ["full_attention"] * 3
    shape = KVShape.of_hf(hf(18, 4, 1, 256, sliding_window=512, layer_types=kinds))
    assert (shape.full_layers, shape.window_layers) == (3, 15)
    assert shape.bytes_at(100) == 100 * shape.bytes_per_token()
    row = 2 * 256 * 2
    assert shape.bytes_at(10_000) == row * (3 * 10_000 + 15 * 512)
    # by pattern, and switched off
    assert (
        KVShape.of_hf(hf(12, 4, 1, 8, sliding_window=4, sliding_window_pattern=6)).full_layers == 2
    )
    off = KVShape.of_hf(hf(12, 4, 1, 8, sliding_window=4, use_sliding_window=False))
    assert off.window_layers == 0


def test_a_multimodal_file_counts_its_text_model():
    raw = {"text_config": hf(2, 4, 2, 8), "num_hidden_layers": 99}
    assert KVShape.of_hf(raw).num_layers == 2


def test_a_config_without_layers_is_refused_by_name():
    with pytest.raises(UnsupportedModelError, match="num_hidden_layers"):
        KVShape.of_hf({"model_type": "mamba"})


def test_quantized_bytes_count_scales_and_minima():
    shape = KVShape(30, 0, 0, 3, 128)
    # 64 channels a head; per token: int8 codes 128, keys 64 * 4 / 64, values 4
    assert shape.quantized_bytes_per_value(form("int8")) * 128 == 128 + 4 + 4
    assert shape.quantized_bytes_per_value(form("int4")) * 128 == 64 + 4 + 4
    assert shape.quantized_bytes_per_value(form("int2", group_size=32)) * 128 == 32 + 8 + 4
    assert shape.quantized_bytes_per_value(form("fp8_e4m3")) * 128 == 128
    assert QuantizedForm.named("auto") is None
    with pytest.raises(ConfigError, match="Did you mean 'int4'"):
        QuantizedForm.named("int44")


def test_the_kv_share_of_a_step():
    shape = KVShape.of_hf(PUBLISHED["llama-3.1-8b"][0])
    token = shape.bytes_per_token()
    assert kv_share(4096, 1, token, 16e9) == pytest.approx(0.032, abs=0.001)
    assert kv_share(4096, 64, token, 16e9) == pytest.approx(0.682, abs=0.001)
    length = dominance_length(64, token, 16e9)
    assert kv_share(round(length), 64, token, 16e9) == pytest.approx(0.5, abs=1e-3)


@pytest.mark.parametrize(
    ("eviction", "kept"),
    [
        (None, 1000),
        ({"method": "snapkv", "budget": 0.25}, 250),
        ({"budget_tokens": 512}, 512),
        ({"budget_tokens": 5000}, 1000),
        ({"budget": 0.0001}, 1),
    ],
)
def test_rows_that_eviction_keeps(eviction, kept):
    assert rows_kept(1000, eviction) == kept


@pytest.mark.parametrize("eviction", [{}, {"budget": 0}, {"budget": 1.5}, {"budget": "half"}])
def test_an_impossible_budget_is_refused(eviction):
    with pytest.raises(ConfigError, match="budget"):
        rows_kept(10, eviction)


def test_pages_cover_rows_and_waste_less_than_one_each():
    rules = PageRules(16, 1, 1000)
    for rows in range(1, 200):
        slots = rules.pages(rows).full * 16
        assert 0 <= slots - rows < 16
        assert rules.waste(rows) == pytest.approx((slots - rows) / slots)
    mean = sum(rules.waste(rows) * -(-rows // 16) * 16 for rows in range(1, 1601)) / 1600
    assert mean == pytest.approx((16 - 1) / 2)  # E[waste] = (B - 1) / 2 tokens
    assert 1 - 300 / (rules.pages(300).full * 16) < 0.04  # the published "<4 %"


def test_quantized_pages_follow_the_rule_of_rows():
    rules = PageRules(16, 2, 1000, form("int8", group_size=64, residual=128), 500)
    for rows in range(1, 600):
        border = rows // 16 * 16 - 128
        read = sum((page + 1) * 16 - 1 <= border for page in range(-(-rows // 16)))
        pages = rules.pages(rows)
        assert pages.quantized == 2 * -(-read * 16 // 64), rows  # whole row groups
        assert pages.full == 2 * (-(-rows // 16) - read)


def test_rows_of_the_chunk_in_flight_are_still_whole():
    rules = PageRules(16, 1, 1000, form("int8"), 500)
    done, flying = rules.pages(1024), rules.pages(1024, chunk=512)
    assert flying.full - done.full == 512 // 16
    assert flying.quantized == 14  # the last query reads 55 pages, which begin 14 row groups


def test_the_largest_number_of_sequences_is_the_largest_that_fits():
    for pool in range(0, 60):
        for resident, peak in [(3, 3), (3, 9), (7, 7), (5, 2)]:
            count = num_sequences(PageCount(pool), PageCount(resident), PageCount(peak))
            fits = [n for n in range(1, 30) if (n - 1) * resident + max(resident, peak) <= pool]
            assert count == (max(fits) if fits else 0)


def test_the_scarcer_form_decides():
    one = PageCount(2, 5)
    assert num_sequences(PageCount(20, 100), one) == 10
    assert num_sequences(PageCount(200, 100), one) == 20
