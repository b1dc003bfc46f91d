from pathlib import Path

import pytest

from infopt.bench.workload_types import WORKLOADS
from infopt.bench.workloads import build_workload, describe_workload, workload_options
from infopt.errors import ConfigError, WorkloadError

TRACES = Path(__file__).parents[2] / "config" / "traces"

SPECS = {
    "synthetic": {"num_requests": 6, "prompt_tokens": 20, "output_tokens": 5},
    "shared-prefix": {
        "num_requests": 6,
        "num_groups": 2,
        "prefix_tokens": 30,
        "suffix_tokens": 10,
        "output_tokens": 5,
    },
    "long-context": {"num_requests": 2, "prompt_tokens": 300},
    "summarize": {"num_requests": 4, "text_tokens": 40},
    "edit": {
        "num_requests": 4,
        "text_tokens": 40,
        "output_tokens": {"kind": "uniform", "min": 1, "max": 9},
    },
    "edit-code": {"num_requests": 4, "text_tokens": 40},
    "chat": {"num_requests": 130, "output_tokens": 8},
    "multi-turn": {
        "num_conversations": 2,
        "num_turns": 3,
        "system_tokens": 10,
        "user_tokens": 8,
        "answer_tokens": 6,
        "output_tokens": 4,
    },
    "sessions": {
        "num_requests": 8,
        "num_documents": 2,
        "document_blocks": 2,
        "block_tokens": 8,
        "output_tokens": 4,
    },
    "trace": {
        "path": TRACES / "mooncake_synthetic_head.jsonl",
        "num_requests": 12,
        "length_scale": 0.02,
    },
}


@pytest.mark.parametrize("kind", sorted(SPECS))
def test_every_workload_is_reproducible_and_depends_on_its_seed(kind: str) -> None:
    spec = {"kind": kind, **SPECS[kind]}
    first, again = (build_workload(spec, vocab_size=500, seed=3) for _ in range(2))
    other = build_workload(spec, vocab_size=500, seed=4)
    assert first == again
    assert [r.prompt_token_ids for r in first] != [r.prompt_token_ids for r in other]


@pytest.mark.parametrize("kind", sorted(SPECS))
def test_every_workload_is_well_formed(kind: str) -> None:
    requests = build_workload({"kind": kind, **SPECS[kind]}, vocab_size=500)
    assert len({r.request_id for r in requests}) == len(requests)
    assert requests[0].arrival_s == 0
    arrivals = [r.arrival_s for r in requests]
    assert arrivals == sorted(arrivals)
    for request in requests:
        assert request.prompt_token_ids
        assert request.max_tokens >= 1
        assert all(0 <= t < 500 for t in request.prompt_token_ids)


def test_every_registered_workload_is_tested_here() -> None:
    assert WORKLOADS.names() == sorted(SPECS)


def test_changing_one_distribution_leaves_the_others() -> None:
    spec = {
        "kind": "synthetic",
        "num_requests": 20,
        "prompt_tokens": {"kind": "uniform", "min": 5, "max": 50},
        "output_tokens": 5,
        "arrivals": {"kind": "poisson", "rate": 2},
    }
    first = build_workload(spec, vocab_size=500)
    other = build_workload(
        spec | {"output_tokens": {"kind": "uniform", "min": 1, "max": 9}}, vocab_size=500
    )
    assert [r.arrival_s for r in first] == [r.arrival_s for r in other]
    assert [r.prompt_token_ids for r in first] == [r.prompt_token_ids for r in other]
    assert [r.max_tokens for r in first] != [r.max_tokens for r in other]


def test_groups_share_exactly_their_prefix() -> None:
    requests = build_workload({"kind": "shared-prefix", **SPECS["shared-prefix"]}, vocab_size=500)
    prompts = [r.prompt_token_ids for r in requests]
    assert [r.prefix_group for r in requests] == ["group-0", "group-1"] * 3
    assert prompts[0][:30] == prompts[2][:30] == prompts[4][:30]
    assert prompts[0][:30] != prompts[1][:30]
    assert prompts[0][30:] != prompts[2][30:]
    assert {len(p) for p in prompts} == {40}


def test_prompts_are_real_text_with_a_tokenizer(make_tiny_tokenizer) -> None:
    tokenizer = make_tiny_tokenizer(add_bos=True)
    spec = {"kind": "synthetic", "num_requests": 8, "prompt_tokens": 60, "output_tokens": 5}
    requests = build_workload(spec, tokenizer=tokenizer)
    prompts = [r.prompt_token_ids for r in requests]
    assert {len(p) for p in prompts} == {60}
    assert {p[0] for p in prompts} == {tokenizer.bos_token_id}
    assert all(tokenizer.bos_token_id not in p[1:] for p in prompts)
    text = tokenizer.decode(prompts[0], skip_special_tokens=True)
    assert " the " in "".join(tokenizer.decode(p, skip_special_tokens=True) for p in prompts)
    assert text.startswith("0. ")


def test_no_two_independent_prompts_share_a_page_by_chance(make_tiny_tokenizer) -> None:
    """Pins cache hits on a workload that should have none: text positions are drawn at random."""
    spec = {"kind": "synthetic", "num_requests": 400, "prompt_tokens": 16, "output_tokens": 1}
    requests = build_workload(spec, tokenizer=make_tiny_tokenizer())
    assert len({tuple(r.prompt_token_ids) for r in requests}) == 400


@pytest.mark.parametrize("kind", ["summarize", "edit"])
def test_grounded_prompts_hold_the_text_inside_the_chat_template(kind, make_tiny_tokenizer) -> None:
    tokenizer = make_tiny_tokenizer()
    spec = {"kind": kind, "num_requests": 3, "text_tokens": 80}
    for request in build_workload(spec, tokenizer=TemplateIds(tokenizer)):
        text = tokenizer.decode(request.prompt_token_ids, skip_special_tokens=False)
        assert text.startswith("<|im_start|>user\n")
        assert text.endswith("<|im_start|>assistant\n")
        assert len(request.prompt_token_ids) > 80


def test_grounded_prompts_without_a_template_are_plain_text(make_tiny_tokenizer) -> None:
    tokenizer = make_tiny_tokenizer(chat_template="")
    request = build_workload({"kind": "edit", "num_requests": 1}, tokenizer=tokenizer)[0]
    text = tokenizer.decode(request.prompt_token_ids, skip_special_tokens=False)
    assert text.startswith("Repeat the following text exactly")


class TemplateIds:
    """A transformers tokenizer whose chat template gives ids, as `infopt`'s own does."""

    def __init__(self, tokenizer) -> None:
        self._tokenizer = tokenizer
        self.chat_template = tokenizer.chat_template
        self.encode, self.decode = tokenizer.encode, tokenizer.decode

    def apply_chat_template(self, messages) -> list[int]:
        text = self._tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )
        return self._tokenizer.encode(text, add_special_tokens=False)


def test_description_counts_what_is_there() -> None:
    spec = {"kind": "shared-prefix", **SPECS["shared-prefix"]}
    spec["arrivals"] = {"kind": "constant", "rate": 2}
    description = describe_workload(build_workload(spec, vocab_size=500))
    assert description["num_requests"] == 6
    assert description["span_s"] == 2.5
    assert description["offered_rate_per_s"] == 2.0
    assert description["prompt_tokens"]["mean"] == 40
    assert description["num_prefix_groups"] == 2


def test_options_are_those_of_the_function() -> None:
    assert workload_options("long-context") == {
        "num_requests": True, "prompt_tokens": False, "output_tokens": False, "arrivals": False
    }  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        ({"kind": "sharegpt"}, ConfigError, "Unknown workload 'sharegpt'"),
        ({"kind": "shared_prefix"}, ConfigError, "Did you mean 'shared-prefix'"),
        ({"kind": "edit", "num_reqests": 3}, ConfigError, "Did you mean 'num_requests'"),
        ({"kind": "edit"}, WorkloadError, "needs 'num_requests'"),
        ({"kind": "edit", "num_requests": 0}, WorkloadError, "num_requests must be"),
        ({"kind": "edit", "num_requests": 2.5}, WorkloadError, "got 2.5"),
        ({}, WorkloadError, "needs a kind"),
        (
            {"kind": "trace", "path": "nowhere.csv"},
            WorkloadError,
            "Cannot read trace 'nowhere.csv'",
        ),
    ],
)
def test_bad_specifications_are_refused(spec, error, message) -> None:
    with pytest.raises(error, match=message):
        build_workload(spec, vocab_size=500)


def test_random_ids_need_a_vocabulary() -> None:
    with pytest.raises(WorkloadError, match="needs vocab_size"):
        build_workload({"kind": "edit", "num_requests": 1})


def test_code_is_cut_from_sources_and_questions_are_all_different(make_tiny_tokenizer) -> None:
    tokenizer = make_tiny_tokenizer(chat_template="")
    spec = {"kind": "edit-code", "num_requests": 8, "text_tokens": 200}
    texts = [
        tokenizer.decode(r.prompt_token_ids) for r in build_workload(spec, tokenizer=tokenizer)
    ]
    assert any("def " in text for text in texts)
    asked = build_workload({"kind": "chat", "num_requests": 130}, tokenizer=tokenizer)
    texts = [tokenizer.decode(r.prompt_token_ids) for r in asked]
    assert len(set(texts)) == 130
    assert sum("(Version 2.)" in text for text in texts) == 10
    other = build_workload({"kind": "chat", "num_requests": 3}, tokenizer=tokenizer, seed=1)
    assert [r.prompt_token_ids for r in other] != [r.prompt_token_ids for r in asked[:3]]
