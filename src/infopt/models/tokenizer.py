"""`Tokenizer`: text <-> ids with exact token bytes, around a transformers fast tokenizer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from infopt.errors import CheckpointError, PromptError, UnsupportedModelError
from infopt.models.quiet import quiet_transformers

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tekken.json", "vocab.json")

Message = Mapping[str, Any]


class Tokenizer:
    """Encodes and decodes for one model.

    BOS is added by ``encode`` where the checkpoint says so and nowhere else; a chat template prints
    its own, so templates are encoded without. To complete a rendered template, encode it with
    ``add_special_tokens=False``: otherwise a tokenizer that adds BOS would add a second one.

    Args:
        hf: A transformers fast tokenizer.
        num_tokens: Entries that are tokens (ids at or above it are padding); default is one more
            than the highest id.

    Attributes:
        hf: The transformers tokenizer inside.
        vocab_size: Number of entries, added tokens included.
    """

    def __init__(self, hf: Any, *, num_tokens: int | None = None) -> None:
        """Wrap a tokenizer; the byte table is built when first needed."""
        self.hf = hf
        backend = hf.backend_tokenizer
        self.vocab_size: int = _count_tokens(backend) if num_tokens is None else num_tokens
        self._special_ids = frozenset(
            index for index, token in backend.get_added_tokens_decoder().items() if token.special
        )
        self._bytes: list[bytes] | None = None

    @property
    def eos_token_id(self) -> int | None:
        """Id of the end-of-sequence token."""
        return self.hf.eos_token_id

    @property
    def bos_token_id(self) -> int | None:
        """Id of the beginning-of-sequence token."""
        return self.hf.bos_token_id

    @property
    def chat_template(self) -> str | None:
        """The checkpoint's Jinja template, if it has one (the default one of several)."""
        template = self.hf.chat_template
        return template.get("default") if isinstance(template, dict) else template

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of a text.

        Args:
            text: Any text; the text of special tokens becomes those tokens.
            add_special_tokens: Add BOS (or EOS) where the checkpoint asks for it.

        Raises:
            PromptError: If the text holds half of a surrogate pair, which no bytes stand for.
        """
        _check_encodable(text)
        return self.hf.backend_tokenizer.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of ids, as it is (no clean-up of spaces).

        Bytes that are no valid UTF-8 become U+FFFD.
        """
        backend = self.hf.backend_tokenizer
        return backend.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def is_special(self, token_id: int) -> bool:
        """Tell whether an id is a control token (BOS, <|im_start|>, ...)."""
        return token_id in self._special_ids

    def token_bytes(self, token_id: int) -> bytes:
        """Return the exact bytes a token stands for, which may be part of a character.

        Special tokens give their literal text. Joined over ``encode(text)`` they give
        ``text.encode()``, after a leading space where a SentencePiece model adds one.

        Raises:
            PromptError: If there is no such id.
        """
        if self._bytes is None:
            self._bytes = _byte_table(self.hf.backend_tokenizer, self.vocab_size)
        if not 0 <= token_id < len(self._bytes):
            raise PromptError(
                f"Token id {token_id} is outside the vocabulary of {self.vocab_size}.",
                field="token_id",
                value=token_id,
            )
        return self._bytes[token_id]

    def render_chat_template(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **options: Any,
    ) -> str:
        """Return the prompt text that the chat template makes of a conversation.

        Args:
            messages: Role and content of each message, in order.
            tools: JSON descriptions of callable tools.
            add_generation_prompt: End with the opening of the assistant's turn.
            **options: Handed to the template.

        Raises:
            PromptError: If there is no template, or the template refuses the messages.
        """
        if self.chat_template is None:
            raise PromptError(
                "This model has no chat template.",
                field="messages",
                remedy="Write the prompt yourself, or use an instruction-tuned model.",
            )
        from jinja2 import TemplateError

        try:
            return self.hf.apply_chat_template(
                [dict(message) for message in messages],
                tools=None if tools is None else list(tools),
                add_generation_prompt=add_generation_prompt,
                tokenize=False,
                **options,
            )
        except (TemplateError, TypeError, KeyError, ValueError) as error:
            raise PromptError(
                f"The chat template refuses these messages: {error}", field="messages"
            ) from error

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **options: Any,
    ) -> list[int]:
        """Return the ids of the rendered template (see `render_chat_template`)."""
        text = self.render_chat_template(messages, tools, add_generation_prompt, **options)
        return self.encode(text, add_special_tokens=False)


def has_tokenizer(folder: Path) -> bool:
    """Tell whether a checkpoint folder comes with a tokenizer."""
    return any((folder / name).exists() for name in _TOKENIZER_FILES)


def folder_tokenizer(folder: Path) -> Tokenizer:
    """Load the tokenizer of a checkpoint folder; nothing is downloaded, no code of it is run.

    Raises:
        CheckpointError: If there is none, or it cannot be read.
        UnsupportedModelError: If it exists only in a slow Python form.
    """
    if not has_tokenizer(folder):
        raise CheckpointError(
            f"{folder} has no tokenizer.",
            field="tokenizer",
            value=str(folder),
            remedy="Add tokenizer.json, or work on token ids with skip_tokenizer_init=True.",
        )
    from transformers import AutoTokenizer

    try:
        with quiet_transformers():
            hf = AutoTokenizer.from_pretrained(
                folder, trust_remote_code=False, local_files_only=True
            )
    except (ValueError, OSError, KeyError, ImportError) as error:
        raise CheckpointError(
            f"The tokenizer in {folder} cannot be read: {error}", field="tokenizer"
        ) from error
    if not getattr(hf, "is_fast", False):
        raise UnsupportedModelError(
            f"The tokenizer in {folder} has no fast form ({type(hf).__name__}).",
            field="tokenizer",
            value=type(hf).__name__,
            remedy="Save it once with a tokenizer.json.",
        )
    return Tokenizer(hf)


def _check_encodable(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise PromptError(
            f"The prompt holds {text[error.start]!r} at position {error.start}, half of a "
            "surrogate pair.",
            field="prompt",
            value=text[error.start],
            remedy="Decode the text as UTF-16 or UTF-8 before sending it.",
        ) from error


def _count_tokens(backend: Any) -> int:
    return max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1


def _byte_table(backend: Any, num_tokens: int) -> list[bytes]:
    """Return the bytes of ids 0 .. num_tokens - 1 (empty for ids that are not used)."""
    to_bytes = _piece_decoder(backend)
    added = backend.get_added_tokens_decoder()
    table = [b""] * num_tokens
    for piece, index in backend.get_vocab(with_added_tokens=True).items():
        if index < num_tokens:
            table[index] = piece.encode() if index in added else to_bytes(piece)
    return table


def _piece_decoder(backend: Any):
    """Return piece -> bytes for the kind of vocabulary that the decoder of ``backend`` shows.

    Raises:
        UnsupportedModelError: If it is neither byte-level nor SentencePiece with byte fallback.
    """
    # Only the decoder is serialised: the whole tokenizer would be tens of megabytes.
    kinds = _decoder_kinds(json.loads(backend.decoder.__getstate__()) if backend.decoder else None)
    if "ByteLevel" in kinds:
        table = byte_level_alphabet()
        return lambda piece: bytes(table[character] for character in piece)
    if "ByteFallback" in kinds or "Metaspace" in kinds:
        return _sentencepiece_bytes
    raise UnsupportedModelError(
        f"The decoder of this tokenizer is of an unknown kind ({sorted(kinds)}), so the bytes of "
        "its tokens are not known.",
        field="tokenizer",
        value=sorted(kinds),
        remedy="Supported: byte-level BPE and SentencePiece with byte fallback.",
    )


def _decoder_kinds(decoder: Mapping[str, Any] | None) -> set[str]:
    if decoder is None:
        return set()
    if decoder["type"] == "Sequence":
        return {part["type"] for part in decoder["decoders"]}
    return {decoder["type"]}


def _sentencepiece_bytes(piece: str) -> bytes:
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        return bytes.fromhex(piece[3:5])
    return piece.replace("\u2581", " ").encode()


def byte_level_alphabet() -> dict[str, int]:
    """Return the byte-level BPE alphabet: printable stand-in character -> byte.

    Printable Latin-1 bytes stand for themselves; the others are numbered from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    table = {chr(byte): byte for byte in printable}
    table.update({chr(256 + index): byte for index, byte in enumerate(others)})
    return table
