"""A draft model must speak the model's tokens; padding of an embedding does not matter."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from infopt import LLM, SamplingParams
from infopt.errors import DraftModelError


def draft(target: Path, model: Path, **options: object) -> LLM:
    speculative = {"method": "draft_model", "model": str(model)}
    return LLM(str(target), speculative=speculative, dtype="float32", max_model_len=64, **options)


def test_swapped_ids_are_refused_with_the_first_one_that_differs(
    tiny_model_dir: Callable[..., Path], tmp_path: Path
) -> None:
    """Pins: a draft model with another vocabulary ran and produced nonsense."""
    folder = tmp_path / "swapped"
    shutil.copytree(tiny_model_dir(), folder)
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text("utf-8"))
    vocabulary = content["model"]["vocab"]
    a, b = (token for token, index in vocabulary.items() if index in (40, 50))
    vocabulary[a], vocabulary[b] = vocabulary[b], vocabulary[a]
    file.write_text(json.dumps(content), "utf-8")
    with pytest.raises(DraftModelError, match="id 40 is "):
        draft(tiny_model_dir(), folder)


@pytest.mark.parametrize(("ours", "theirs"), [(320, 336), (336, 320), (344, 336)])
def test_padded_embeddings_are_no_difference(
    tiny_model_dir: Callable[..., Path], ours: int, theirs: int
) -> None:
    """Pins: harmless padding was refused; ids of padding are never guessed."""
    with draft(tiny_model_dir(vocab_size=ours), tiny_model_dir(seed=1, vocab_size=theirs)) as llm:
        seen: list[int] = []
        drafter = llm.engine.scheduler.drafter
        assert drafter is not None
        real = drafter.propose

        def propose(requests: object) -> object:
            drafts = real(requests)  # type: ignore[arg-type]
            seen.extend(t for d in drafts for t in d.token_ids)  # type: ignore[union-attr]
            return drafts

        drafter.propose = propose  # type: ignore[method-assign, assignment]
        params = SamplingParams(temperature=5.0, max_tokens=30, seed=1, ignore_eos=True, n=3)
        llm.generate([[5, 6, 7]], params, use_tqdm=False)
        assert len(seen) > 50
        assert max(seen) < 320


def test_fewer_tokens_than_the_model_are_refused(
    tiny_model_dir: Callable[..., Path], make_tiny_tokenizer: Callable[..., object], tmp_path: Path
) -> None:
    small = tmp_path / "small"
    shutil.copytree(tiny_model_dir(vocab_size=300), small)
    make_tiny_tokenizer(vocab_size=300).save_pretrained(small)  # type: ignore[attr-defined]
    with pytest.raises(DraftModelError, match="knows 300 tokens, the model 320"):
        draft(tiny_model_dir(), small)


def test_ids_alone_need_no_tokenizer(tiny_model_dir: Callable[..., Path]) -> None:
    with draft(tiny_model_dir(), tiny_model_dir(seed=1), skip_tokenizer_init=True) as llm:
        params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
        (output,) = llm.generate([[5, 6, 7]], params, use_tqdm=False)
        assert len(output.outputs[0].token_ids) == 5
