"""What a prefix cache can save: by hand, and against a cache that is large enough."""

import numpy as np
import pytest

from infopt import LLM
from infopt.bench.closed import run_batch
from infopt.bench.prefix_sharing import prefill_flops, saved_share, shareable_tokens
from infopt.bench.workload_sessions import session_blocks
from infopt.bench.workloads import build_workload
from infopt.errors import WorkloadError

MULTI_TURN = {
    "kind": "multi-turn",
    "num_conversations": 3,
    "num_turns": 3,
    "system_tokens": 20,
    "user_tokens": 12,
    "answer_tokens": 9,
    "output_tokens": 2,
}
SESSIONS = {
    "kind": "sessions",
    "num_requests": 12,
    "num_documents": 2,
    "document_blocks": 3,
    "block_tokens": 10,
    "output_tokens": 2,
    "max_blocks": 6,
}


def test_shareable_tokens_by_hand():
    prompts = [
        [1, 2, 3, 4, 5],  # nothing before it
        [1, 2, 3, 4, 5],  # two pages, one token computed
        [1, 2, 3, 4],  # the second page would leave nothing to compute
        [1, 2, 9, 9, 9],
        [9, 2, 3, 4, 5],
    ]
    assert shareable_tokens(prompts, 2) == [0, 4, 2, 2, 0]


@pytest.mark.parametrize(("spec", "few"), [(MULTI_TURN, 30), (SESSIONS, 18)])
def test_a_large_cache_finds_all_that_is_shared_and_a_small_one_less(tiny_model_dir, spec, few):
    requests = build_workload(spec, vocab_size=300, seed=1)
    expected = shareable_tokens([r.prompt_token_ids for r in requests], 4)
    assert sum(expected) > 0
    found = {}
    for pages in (400, few):
        folder, options = str(tiny_model_dir("llama")), {"block_size": 4, "max_num_seqs": 1}
        with LLM(folder, dtype="float32", num_kv_pages=pages, **options) as llm:
            records = run_batch(llm, requests).records
        found[pages] = [r.num_cached_tokens for r in records]
    assert found[400] == expected
    assert sum(found[few]) < sum(expected)


def test_prefill_flops_follow_the_published_formula(tiny_model_dir):
    """2 N T + 2 L d T^2 for a causal prefill, whose last term counts T pairs where T + 1 are."""
    with LLM(str(tiny_model_dir("llama")), dtype="float32") as llm:
        config = llm.model_config
    weights = config.num_layers * (config.attention_parameters + config.dense_mlp_parameters)
    tokens = 1000
    expected = 2 * weights * tokens
    expected += 2 * config.num_layers * config.query_size * tokens * (tokens + 1)
    assert prefill_flops(config, tokens) == expected
    assert saved_share(config, [100, 100], [0, 0]) == 0
    assert saved_share(config, [100], [50]) < 0.5  # the first half has fewer pairs
    assert saved_share(config, [100, 300], [100, 300]) == 1


def test_window_layers_count_their_window(tiny_model_dir):
    with LLM(str(tiny_model_dir("gemma3_text")), dtype="float32") as llm:
        config = llm.model_config
    pairs = sum(min(i + 1, 24) for i in range(100)) * 2 + 100 * 101 // 2
    rest = prefill_flops(config, 100) - 4 * config.query_size * pairs
    assert rest == 100 * prefill_flops(config, 1) - 100 * 4 * config.query_size * 3


def test_turns_extend_each_other():
    requests = build_workload(MULTI_TURN, vocab_size=300, seed=0)
    assert len(requests) == 9
    for turn in range(2):
        for who in range(3):
            before, after = (requests[(turn + i) * 3 + who].prompt_token_ids for i in range(2))
            assert after[: len(before)] == before
            assert len(after) == len(before) + 12 + 9
    assert requests[0].prompt_token_ids[:20] == requests[1].prompt_token_ids[:20]
    assert requests[0].prompt_token_ids != requests[1].prompt_token_ids


def test_sessions_begin_with_documents_and_grow():
    lists = session_blocks(
        np.random.default_rng(0),
        200,
        num_documents=3,
        document_blocks=4,
        continue_share=0.6,
        max_blocks=7,
        zipf_alpha=1.0,
    )
    seen = set()
    for blocks in lists:
        document = blocks[0] // 4
        assert blocks[:4] == list(range(document * 4, document * 4 + 4))
        assert 5 <= len(blocks) <= 7
        assert len(blocks) == 5 or tuple(blocks[:-1]) in seen
        seen.add(tuple(blocks))
    starts = [blocks[0] // 4 for blocks in lists if len(blocks) == 5]
    assert starts.count(0) > starts.count(2)  # the first document is the most popular


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"continue_share": 1.5}, "continue_share"),
        ({"max_blocks": 3}, "max_blocks"),
        ({"zipf_alpha": -1}, "zipf_alpha"),
        ({"num_documents": 0}, "num_documents"),
    ],
)
def test_impossible_sessions_are_refused(change, field):
    with pytest.raises(WorkloadError, match=field):
        build_workload(SESSIONS | change, vocab_size=300)
