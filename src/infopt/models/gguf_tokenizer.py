"""Builds a fast tokenizer from GGUF metadata.

Two kinds exist: ``gpt2`` is byte-level BPE whose pre-tokenizer is named by a tag, ``llama`` is a
SentencePiece vocabulary with scores. A tag that is not in the table below is refused: a wrong
pre-tokenizer gives plausible but different ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from infopt.errors import CheckpointError, UnsupportedModelError, nearest
from infopt.models.tokenizer import Tokenizer

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

LLAMA3_PATTERN = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}"
QWEN2_PATTERN = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_REST}"

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How a text is cut before byte-level BPE.

    Attributes:
        pattern: What is a piece; None is the pattern of GPT-2.
        single_digits: Cut every digit off first.
        nfc: Normalise to composed characters.
        whole_words: Take a piece that is a token without applying merges.
    """

    pattern: str | None = None
    single_digits: bool = False
    nfc: bool = False
    whole_words: bool = False


_LLAMA3 = PreTokenizer(LLAMA3_PATTERN, whole_words=True)
_QWEN2 = PreTokenizer(QWEN2_PATTERN, nfc=True)

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "gpt-2": PreTokenizer(),
    "smollm": PreTokenizer(single_digits=True),
    "llama-bpe": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
}


def gguf_tokenizer(metadata: Mapping[str, Any], num_real_tokens: int) -> Tokenizer:
    """Build the tokenizer that GGUF metadata describe.

    Args:
        metadata: Key -> value, as `GGUFReader` gives them.
        num_real_tokens: Entries that are tokens; padding entries behind them are left out.

    Raises:
        UnsupportedModelError: For an unknown kind of tokenizer or pre-tokenizer tag.
        CheckpointError: If the metadata lack the vocabulary.
    """
    kind = metadata.get("tokenizer.ggml.model")
    builders = {"gpt2": _byte_level, "llama": _sentencepiece}
    if kind not in builders:
        raise UnsupportedModelError(
            f"Tokenizer kind {kind!r} is not supported.",
            field="tokenizer.ggml.model",
            value=kind,
            remedy=f"Supported: {', '.join(builders)}.",
        )
    tokens = _need(metadata, "tokens")[:num_real_tokens]
    backend = builders[kind](metadata, tokens)
    backend.add_special_tokens(_added_tokens(metadata, tokens, special=True))
    backend.add_tokens(_added_tokens(metadata, tokens, special=False))
    backend.post_processor = _post_processor(metadata, tokens, kind)
    return Tokenizer(_wrap(backend, metadata, tokens), num_tokens=len(tokens))


def _need(metadata: Mapping[str, Any], name: str) -> Any:
    key = f"tokenizer.ggml.{name}"
    if key not in metadata:
        raise CheckpointError(
            f"The GGUF metadata lack {key}.",
            field=key,
            remedy="Convert the model again, with its tokenizer.",
        )
    return metadata[key]


def _byte_level(metadata: Mapping[str, Any], tokens: list[str]) -> Any:
    from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
    from tokenizers import Tokenizer as Backend

    rules = _pre_tokenizer(metadata)
    merges = [tuple(merge.split(" ", 1)) for merge in _need(metadata, "merges")]
    vocab = {token: index for index, token in enumerate(tokens)}
    backend = Backend(models.BPE(vocab, merges, ignore_merges=rules.whole_words))  # pyright: ignore
    steps: list[Any] = []
    if rules.single_digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if rules.pattern is not None:
        steps.append(pre_tokenizers.Split(Regex(rules.pattern), "isolated"))
    prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", False))
    steps.append(pre_tokenizers.ByteLevel(prefix, use_regex=rules.pattern is None))
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)  # pyright: ignore
    if rules.nfc:
        backend.normalizer = normalizers.NFC()  # pyright: ignore
    backend.decoder = decoders.ByteLevel()  # pyright: ignore
    return backend


def _pre_tokenizer(metadata: Mapping[str, Any]) -> PreTokenizer:
    tag = metadata.get("tokenizer.ggml.pre")
    if tag not in PRE_TOKENIZERS:
        raise UnsupportedModelError(
            f"Pre-tokenizer {tag!r} is not known.{nearest(str(tag), PRE_TOKENIZERS)}",
            field="tokenizer.ggml.pre",
            value=tag,
            remedy=f"Known: {', '.join(sorted(PRE_TOKENIZERS))}.",
        )
    return PRE_TOKENIZERS[tag]


def _sentencepiece(metadata: Mapping[str, Any], tokens: list[str]) -> Any:
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, normalizers

    scores = np.asarray(_need(metadata, "scores"), dtype=np.float64)[: len(tokens)]
    types = _token_types(metadata, tokens)
    unknown = int(metadata.get("tokenizer.ggml.unknown_token_id", 0))
    backend = Backend(
        models.BPE(
            {token: index for index, token in enumerate(tokens)},
            score_merges(tokens, scores, types),
            unk_token=tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    # The format's default for this key is true: a space is put before the text, as Llama 2 does.
    prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    space = normalizers.Replace(" ", "\u2581")
    backend.normalizer = (  # pyright: ignore
        normalizers.Sequence([normalizers.Prepend("\u2581"), space]) if prefix else space
    )
    steps: list[Any] = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefix:
        steps.append(decoders.Strip(" ", 1, 0))
    backend.decoder = decoders.Sequence(steps)  # pyright: ignore
    return backend


def score_merges(tokens: list[str], scores: np.ndarray, types: np.ndarray) -> list[tuple[str, str]]:
    """Derive BPE merges from SentencePiece scores: pairs are joined in order of the result's score.

    Args:
        tokens: Pieces by id.
        scores: Score of each piece.
        types: Token type of each piece; only normal pieces are the result of a merge.

    Returns:
        Pairs of pieces, the first to be joined first.
    """
    ids = {token: index for index, token in enumerate(tokens)}
    merges: list[tuple[float, int, int, str, str]] = []
    for index in np.flatnonzero(types == _NORMAL):
        piece = tokens[index]
        for cut in range(1, len(piece)):
            left = ids.get(piece[:cut])
            right = None if left is None else ids.get(piece[cut:])
            if left is not None and right is not None:
                merges.append((-scores[index], left, right, piece[:cut], piece[cut:]))
    merges.sort()
    return [(left, right) for *_, left, right in merges]


def _token_types(metadata: Mapping[str, Any], tokens: list[str]) -> np.ndarray:
    types = metadata.get("tokenizer.ggml.token_type")
    return np.ones(len(tokens), np.int32) if types is None else np.asarray(types)[: len(tokens)]


def _added_tokens(metadata: Mapping[str, Any], tokens: list[str], *, special: bool) -> list[Any]:
    from tokenizers import AddedToken

    wanted = (_UNKNOWN, _CONTROL) if special else (_USER_DEFINED,)
    types = _token_types(metadata, tokens)
    return [
        AddedToken(tokens[index], special=special, normalized=False)
        for index in np.flatnonzero(np.isin(types, wanted))
    ]


def _post_processor(metadata: Mapping[str, Any], tokens: list[str], kind: str) -> Any:
    """Return what adds BOS and EOS: where the file is silent, SentencePiece models add BOS."""
    from tokenizers import processors

    before, after = "", ""
    special = []
    if metadata.get("tokenizer.ggml.add_bos_token", kind == "llama"):
        before = _special_token(metadata, tokens, "bos", special)
    if metadata.get("tokenizer.ggml.add_eos_token", False):
        after = _special_token(metadata, tokens, "eos", special)
    return processors.TemplateProcessing(
        single=f"{before} $A {after}".strip(),
        special_tokens=special,
    )


def _special_token(
    metadata: Mapping[str, Any], tokens: list[str], name: str, special: list[tuple[str, int]]
) -> str:
    index = int(_need(metadata, f"{name}_token_id"))
    special.append((tokens[index], index))
    return tokens[index]


class _HandOver:
    """Gives a backend away where transformers would copy it (seconds for 262,144 entries)."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend

    def __deepcopy__(self, memo: dict) -> Any:
        return self.backend


def _wrap(backend: Any, metadata: Mapping[str, Any], tokens: list[str]) -> Any:
    from transformers import PreTrainedTokenizerFast

    roles = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}
    names = {}
    for key, role in roles.items():
        index = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if index is not None and int(index) < len(tokens):
            names[f"{role}_token"] = tokens[int(index)]
    return PreTrainedTokenizerFast(
        tokenizer_object=_HandOver(backend),
        chat_template=metadata.get("tokenizer.chat_template"),
        clean_up_tokenization_spaces=False,
        **names,
    )
