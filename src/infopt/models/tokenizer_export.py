"""Stores the tokenizer of a checkpoint in a folder, with its chat template."""

from __future__ import annotations

import shutil
from pathlib import Path

from infopt.models.checkpoint import Checkpoint
from infopt.models.quiet import quiet_transformers
from infopt.models.tokenizer import has_tokenizer

_FILES = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "tekken.json",
    "chat_template*",
)
_TEMPLATES = "additional_chat_templates"


def write_tokenizer(checkpoint: Checkpoint, folder: Path) -> None:
    """Store the tokenizer so that AutoTokenizer finds it.

    A folder's own files are copied as they are, and a folder without a tokenizer stays without; the
    tokenizer of a GGUF file is saved by transformers.
    """
    if checkpoint.format != "safetensors":
        with quiet_transformers():
            checkpoint.tokenizer().hf.save_pretrained(folder)
    elif has_tokenizer(checkpoint.path):
        _copy(checkpoint.path, folder)


def _copy(source: Path, folder: Path) -> None:
    for pattern in _FILES:
        for file in source.glob(pattern):
            if file.is_file():
                shutil.copyfile(file, folder / file.name)
    if (source / _TEMPLATES).is_dir():
        shutil.copytree(source / _TEMPLATES, folder / _TEMPLATES, dirs_exist_ok=True)
