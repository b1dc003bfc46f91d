"""One file in every compute type: the same best tokens, and no bits read as another type's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from infopt import LLM

NUM_PROMPTS = 20


def last_rows(path: Path, dtype: str) -> torch.Tensor:
    """Return the logits behind each prompt, float32 ``(NUM_PROMPTS, vocab_size)``."""
    generator = torch.Generator().manual_seed(3)
    lengths = range(1, 2 * NUM_PROMPTS, 2)
    prompts = [torch.randint(4, 320, (n,), generator=generator).tolist() for n in lengths]
    with LLM(str(path), dtype=dtype, backend="reference") as llm:
        return torch.stack([llm.logits(prompt)[-1].float() for prompt in prompts])


@pytest.fixture(scope="module", params=["F32", "Q8_0"])
def exact(
    request: pytest.FixtureRequest, make_gguf: Callable[..., Path]
) -> tuple[Path, torch.Tensor]:
    """A file, and its logits in float32."""
    path = make_gguf(linear_type=request.param)
    return path, last_rows(path, "float32")


@pytest.mark.parametrize(
    ("dtype", "bound"), [("float32", 0.0), ("float16", 0.005), ("bfloat16", 0.06)]
)
def test_best_tokens_do_not_depend_on_the_type(
    exact: tuple[Path, torch.Tensor], dtype: str, bound: float
) -> None:
    """Pins: the type was bfloat16 and the kernel wrote float16 bits, so all text was `?`."""
    path, expected = exact
    found = last_rows(path, dtype)
    error = (found - expected).abs().amax(-1) / expected.abs().amax(-1)
    assert float(error.max()) <= bound
    best = expected.topk(2).values
    is_clear = (best[:, 0] - best[:, 1]) > 2 * bound * expected.abs().amax(-1)
    assert is_clear.sum() >= NUM_PROMPTS // 4
    assert torch.equal(found.argmax(-1)[is_clear], expected.argmax(-1)[is_clear])
    if dtype != "bfloat16":
        assert torch.equal(found.argmax(-1), expected.argmax(-1))
