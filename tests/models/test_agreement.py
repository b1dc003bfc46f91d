"""The native decoder agrees with transformers, family by family.

Both read the same random sequences; per row max |dlogit| / max |logit| is at most 1e-4 in float32.
Tokens are compared only where the reference's two best logits differ by more than 1e-3.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from infopt import LLM, SamplingParams

MAX_RELATIVE_ERROR = 1e-4
NEAR_TIE = 1e-3

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}),
    ("llama", {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 32}),
    ("mistral", {}),
    ("qwen2", {}),
    ("qwen3", {}),
    ("gemma3_text", {}),
    ("gemma3_text", {"final_logit_softcapping": 5.0}),
    ("mixtral", {}),
    ("mixtral", {"sliding_window": 24, "head_dim": 32}),
    ("qwen2_moe", {}),
    ("qwen2_moe", {"norm_topk_prob": True, "decoder_sparse_step": 1, "qkv_bias": False}),
    ("qwen3_moe", {}),
    ("qwen3_moe", {"norm_topk_prob": False, "mlp_only_layers": [], "attention_bias": True}),
    ("olmoe", {}),
    ("olmoe", {"norm_topk_prob": True, "num_key_value_heads": 4}),
]


def reference_logits(folder: Path, sequences: list[list[int]]) -> list[torch.Tensor]:
    """Return float32 logits of transformers, eager attention, one sequence at a time."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    with torch.inference_mode():
        return [model(torch.tensor([ids])).logits[0] for ids in sequences]


def random_sequences(vocab_size: int, lengths: list[int], seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(4, vocab_size, (n,), generator=generator).tolist() for n in lengths]


def relative_error(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    scale = theirs.abs().amax(-1)
    return float(((ours - theirs).abs().amax(-1) / scale).max())


@pytest.mark.parametrize(("family", "changes"), VARIANTS)
def test_scoring_agrees(
    tiny_model_dir: Callable[..., Path], family: str, changes: dict[str, Any]
) -> None:
    folder = tiny_model_dir(family, **changes)
    sequences = random_sequences(320, [1, 5, 70, 130])
    expected = reference_logits(folder, sequences)
    with LLM(str(folder), dtype="float32", max_num_batched_tokens=48) as llm:
        for ids, theirs in zip(sequences, expected, strict=True):
            assert relative_error(llm.logits(ids), theirs) <= MAX_RELATIVE_ERROR


@pytest.mark.parametrize(("family", "changes"), VARIANTS)
def test_decoding_agrees(
    tiny_model_dir: Callable[..., Path], family: str, changes: dict[str, Any]
) -> None:
    """The decode path: each given token is forced by a bias, its raw log-probability compared."""
    folder = tiny_model_dir(family, **changes)
    sequences = random_sequences(320, [45, 60], seed=1)
    expected = reference_logits(folder, sequences)
    num_prompt = 9
    with LLM(str(folder), dtype="float32") as llm:
        for ids, theirs in zip(sequences, expected, strict=True):
            wanted = torch.log_softmax(theirs, -1)
            decoded = decode_forced(llm, ids, num_prompt)
            for i, value in enumerate(decoded, start=num_prompt):
                assert value == pytest.approx(float(wanted[i - 1, ids[i]]), abs=2e-4)


def decode_forced(llm: LLM, ids: list[int], num_prompt: int) -> list[float]:
    """Decode ``ids[num_prompt:]`` token by token in one request; return raw log-probabilities."""
    engine = llm.engine
    params = SamplingParams(
        temperature=0, max_tokens=len(ids) - num_prompt, logprobs=0, ignore_eos=True
    )
    engine.add_request("forced", ids[:num_prompt], params)
    values: list[float] = []
    original = engine.runner.logit_blocks

    def force(hidden: torch.Tensor) -> Any:
        for logits in original(hidden):
            step = len(values)
            token = ids[num_prompt + step]
            values.append(float(torch.log_softmax(logits[-1], -1)[token]))
            forced = logits.clone()
            forced[-1, token] = logits.max() + 1
            yield forced

    engine.runner.logit_blocks = force  # type: ignore[method-assign]
    try:
        while engine.has_unfinished:
            engine.step()
    finally:
        engine.runner.logit_blocks = original  # type: ignore[method-assign]
    return values


def greedy_mismatches(
    tokens: list[int], prompt: list[int], logits: Callable[[list[int]], torch.Tensor]
) -> tuple[int, int]:
    """Teacher-force generated tokens on a reference; return (real mismatches, near-ties)."""
    rows = logits(prompt + tokens)[len(prompt) - 1 : -1]
    best = rows.topk(2, dim=-1)
    wrong = near = 0
    for i, token in enumerate(tokens):
        if token == int(best.indices[i, 0]):
            continue
        if float(best.values[i, 0] - rows[i, token]) < NEAR_TIE:
            near += 1
        else:
            wrong += 1
    return wrong, near


PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a small village,",
    "def quicksort(items):",
    "Water boils at",
    "The three laws of robotics are",
    "import numpy as np\n\n",
    "Dear Sir or Madam,",
    "A recipe for pancakes:",
    "The speed of light is",
    "In 1969, humans first",
    "class Stack:\n    def __init__(self):",
    "The opposite of hot is",
    "List five animals:",
    "Photosynthesis is the process by which",
    "SELECT name FROM users WHERE",
    "The sum of the angles of a triangle",
    "She opened the door and",
    "To install Python on Linux,",
    "The meaning of life",
    "In mathematics, a prime number is",
    "Roses are red,",
    "The Great Wall of China",
    "for i in range(10):",
    "Good morning! Today",
]


@pytest.mark.slow
@pytest.mark.parametrize("fixture", ["smollm2_path", "gemma_path"])
def test_real_files_agree(fixture: str, request: pytest.FixtureRequest) -> None:
    """64 greedy tokens over 24 prompts on the real files; at most 1 near-tie in 500 tokens."""
    from transformers import AutoModelForCausalLM

    path: Path = request.getfixturevalue(fixture)
    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager"
    ).eval()

    def theirs(ids: list[int]) -> torch.Tensor:
        with torch.inference_mode():
            return model(torch.tensor([ids])).logits[0]

    with LLM(str(path), dtype="float32", max_model_len=256, kv_cache_memory_gib=0.5) as llm:
        prompts = [llm.tokenizer.encode(text) for text in PROMPTS]
        params = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)
        outputs = llm.generate(prompts, params, use_tqdm=False)
        total = wrong = near = 0
        worst = 0.0
        for prompt, output in zip(prompts, outputs, strict=True):
            tokens = output.outputs[0].token_ids
            row_wrong, row_near = greedy_mismatches(tokens, prompt, theirs)
            total, wrong, near = total + len(tokens), wrong + row_wrong, near + row_near
        for prompt in prompts[:4]:
            worst = max(worst, relative_error(llm.logits(prompt), theirs(prompt)))
    print(f"{fixture}: {total} tokens, {wrong} mismatches, {near} near-ties, error {worst:.1e}")
    assert total == 64 * len(PROMPTS)
    assert wrong == 0
    assert near <= total // 500
    assert worst <= MAX_RELATIVE_ERROR
