"""The memory model against the real allocator: what it predicts is what the engine admits."""

import pytest

from infopt import LLM
from infopt.bench.kv_capacity import measure_capacity, predict, rules_of
from infopt.bench.kv_capacity_run import measure_ways, parse_way
from infopt.errors import ConfigError, MeasurementError


@pytest.fixture(scope="module")
def make_llm(tiny_model_dir):
    folder = tiny_model_dir("llama", num_hidden_layers=2, max_position_embeddings=1024)

    def make(**options):
        defaults = {"max_num_seqs": 96, "max_num_batched_tokens": 512, "num_kv_pages": 600}
        return LLM(str(folder), dtype="float32", **(defaults | options))

    return make


@pytest.mark.parametrize(
    ("context", "options"),
    [
        (256, {}),
        (250, {"block_size": 8, "num_kv_pages": 1200}),
        (300, {"block_size": 32, "num_kv_pages": 400}),
    ],
)
def test_the_prediction_is_within_three_percent_of_what_is_admitted(make_llm, context, options):
    with make_llm(**options) as llm:
        found = measure_capacity(llm, context, extra=2)
    assert found.num_seqs >= 30  # enough for three percent to be one sequence
    assert abs(found.predicted_seqs - found.num_seqs) <= 0.03 * found.num_seqs
    assert found.tokens_per_s is None or found.low <= found.tokens_per_s <= found.high
    assert found.num_offered == found.predicted_seqs + 2


def test_rules_are_those_of_the_engine(make_llm):
    with make_llm() as llm:
        rules, pool = rules_of(llm)
        assert pool.full == 600
        assert rules.page_bytes == llm.stats()["memory"]["page_bytes"]
        per_token = rules.bytes_per_token(320, 320)  # whole pages
        assert per_token == llm.stats()["memory"]["kv_bytes_per_token"]


def test_a_limit_on_sequences_is_not_taken_for_the_pool(make_llm):
    with make_llm(max_num_seqs=4) as llm, pytest.raises(MeasurementError, match="max_num_seqs"):
        measure_capacity(llm, 64)


def test_the_youngest_counts_with_its_whole_prompt(make_llm):
    """A pool of one prompt holds one sequence, however little it is left with later."""
    with make_llm(num_kv_pages=18) as llm:
        assert predict(llm, 256).num_seqs == 1
        assert predict(llm, 600).num_seqs == 0


def test_ways_are_read():
    assert parse_way("auto") == {"kv_cache_dtype": "auto"}
    assert parse_way("int8+knorm:0.5") == {
        "kv_cache_dtype": "int8",
        "kv_eviction": {"method": "knorm", "budget": 0.5},
    }
    for bad in ("int8+knorm", "int8+knorm:half"):
        with pytest.raises(ConfigError, match="budget"):
            parse_way(bad)


SHORT = {"block_size": 4, "kv_group_size": 16, "kv_residual": 20, "max_num_batched_tokens": 1024}
LONG = {"kv_group_size": 32, "kv_residual": 48, "max_num_batched_tokens": 2048}
SIZES = [
    # 4-token pages and 16-token groups: the proportions of a long context, in little time
    pytest.param(1000, SHORT, 4.5, id="short"),
    pytest.param(4000, LONG, 5.5, id="long", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("context", "options", "times"), SIZES)
def test_eight_bits_and_a_quarter_of_the_rows_hold_many_more_sequences(
    tiny_model_dir, context, options, times
):
    """Pins the aim at a long context, 5.5 times the sequences, and the model's 3 %."""
    model = tiny_model_dir(
        "llama",
        head_dim=64,
        num_attention_heads=1,
        num_key_value_heads=1,
        num_hidden_layers=1,
        max_position_embeddings=8192,
    )
    ways = ["auto", "int8", "auto+snapkv:0.25", "int8+snapkv:0.25"]
    found = measure_ways(
        str(model), ways, context=context, seqs=12, dtype="bfloat16", **options
    )  # fmt: skip
    counts = {way: capacity.num_seqs for way, capacity in found.items()}
    assert counts["int8+snapkv:0.25"] >= times * counts["auto"]
    assert counts["int8+snapkv:0.25"] > counts["auto+snapkv:0.25"] > counts["int8"]
    for way, capacity in found.items():
        off = abs(capacity.predicted_seqs - capacity.num_seqs)
        assert off <= max(0.03 * capacity.num_seqs, 1), way
