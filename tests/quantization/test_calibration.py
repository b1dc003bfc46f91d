"""Calibration text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from infopt import corpus
from infopt.errors import ConfigError
from infopt.models.checkpoint import open_checkpoint
from infopt.quantization.calibration import CalibrationSet


def ids_of(folder: Path, **options: Any) -> torch.Tensor:
    with open_checkpoint(folder) as checkpoint:
        return CalibrationSet(**options).token_ids(checkpoint.config, checkpoint.tokenizer())


def test_the_same_seed_gives_the_same_text(tiny_model_dir: Callable[..., Path]) -> None:
    folder = tiny_model_dir("llama")
    first = ids_of(folder, num_sequences=4, length=32)
    assert first.shape == (4, 32)
    assert torch.equal(first, ids_of(folder, num_sequences=4, length=32))
    assert not torch.equal(first, ids_of(folder, num_sequences=4, length=32, seed=1))
    # More text begins with the same text, so sizes can be compared.
    assert torch.equal(first, ids_of(folder, num_sequences=6, length=32)[:4])


@pytest.mark.parametrize("domain", ["docs", "code"])
def test_text_comes_from_the_train_split(
    tiny_model_dir: Callable[..., Path], domain: corpus.Kind
) -> None:
    folder = tiny_model_dir("llama")
    with open_checkpoint(folder) as checkpoint:
        text = checkpoint.tokenizer().decode(ids_of(folder, domain=domain, length=64)[0].tolist())
    assert text[5:-5] in corpus.text(domain, "train")
    assert text[5:-5] not in corpus.text(domain, "heldout")


def test_random_ids_need_no_tokenizer(tiny_model_dir: Callable[..., Path]) -> None:
    with open_checkpoint(tiny_model_dir("llama")) as checkpoint:
        ids = CalibrationSet("random", 2, 16).token_ids(checkpoint.config, None)
        assert ids.shape == (2, 16)
        assert int(ids.max()) < checkpoint.config.num_real_tokens
        with pytest.raises(ConfigError, match="needs a tokenizer"):
            CalibrationSet("docs", 2, 16).token_ids(checkpoint.config, None)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"domain": "poems"}, r"Unknown calibration domain 'poems'.*mixed, docs, code, random"),
        ({"num_sequences": 0}, "num_sequences must be a whole number >= 1, got 0"),
        ({"length": 1}, "length must be a whole number >= 2"),
        ({"seed": -1}, "seed must be"),
        ({"seed": True}, "seed must be"),
        ({"lenght": 8}, "Unknown option 'lenght'.*length"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        CalibrationSet.from_dict(options)


def test_sequences_longer_than_the_model_are_refused(tiny_model_dir: Callable[..., Path]) -> None:
    with pytest.raises(ConfigError, match="600 tokens are longer than the model's limit of 512"):
        ids_of(tiny_model_dir("llama"), length=600)
