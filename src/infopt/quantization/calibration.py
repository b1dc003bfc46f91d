"""Text that schemes are calibrated on, as token ids."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch

from infopt import corpus
from infopt.errors import ConfigError, check_known_keys, nearest
from infopt.models.config import ModelConfig
from infopt.models.tokenizer import Tokenizer

Domain = Literal["mixed", "docs", "code", "random"]

_CHARS_PER_TOKEN = 8  # more than any tokenizer packs on average, so that text suffices


@dataclass(frozen=True, slots=True)
class CalibrationSet:
    """Which text, and how much.

    Attributes:
        domain: ``docs``, ``code``, half of each (``mixed``), or ``random`` token ids, which no
            model was made for: the worst case.
        num_sequences: Sequences.
        length: Tokens in each.
        seed: Chooses where in the text they start.
    """

    domain: Domain = "mixed"
    num_sequences: int = 16
    length: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigError: Names the field.
        """
        if self.domain not in get_args(Domain):
            raise ConfigError(
                f"Unknown calibration domain {self.domain!r}."
                f"{nearest(str(self.domain), get_args(Domain))}",
                field="calibration.domain",
                value=self.domain,
                remedy=f"Valid: {', '.join(get_args(Domain))}.",
            )
        for name, least in (("num_sequences", 1), ("length", 2), ("seed", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(
                    f"calibration {name} must be a whole number >= {least}, got {value!r}.",
                    field=f"calibration.{name}",
                    value=value,
                )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any] | None) -> CalibrationSet:
        """Build a set from plain data; None is the default.

        Raises:
            ConfigError: An unknown key or a bad value.
        """
        names = [f.name for f in dataclasses.fields(cls)]
        check_known_keys(values or {}, names, "calibration")
        return cls(**(values or {}))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data that :meth:`from_dict` reads."""
        return dataclasses.asdict(self)

    @property
    def num_tokens(self) -> int:
        """Tokens in all."""
        return self.num_sequences * self.length

    def token_ids(self, config: ModelConfig, tokenizer: Tokenizer | None) -> torch.Tensor:
        """Return int64 ``(num_sequences, length)``; sequences begin as the tokenizer begins texts.

        Raises:
            ConfigError: Text is asked for and there is no tokenizer, or a sequence is too long.
        """
        if self.length > config.max_position_embeddings:
            raise ConfigError(
                f"Calibration sequences of {self.length} tokens are longer than the model's limit "
                f"of {config.max_position_embeddings}.",
                field="calibration.length",
                value=self.length,
            )
        generator = torch.Generator().manual_seed(self.seed)
        if self.domain == "random":
            shape = (self.num_sequences, self.length)
            return torch.randint(0, config.num_real_tokens, shape, generator=generator)
        if tokenizer is None:
            raise ConfigError(
                "Calibration on text needs a tokenizer, and this model has none.",
                field="calibration.domain",
                value=self.domain,
                remedy="Use the domain 'random', or add tokenizer.json.",
            )
        start = tokenizer.encode("")  # what the tokenizer puts in front of every text
        rows = [
            (start + self._cut(tokenizer, kind, generator))[: self.length] for kind in self._kinds()
        ]
        return torch.tensor(rows, dtype=torch.int64)

    def _kinds(self) -> list[corpus.Kind]:
        both: tuple[corpus.Kind, ...] = ("docs", "code")
        kinds = both if self.domain == "mixed" else (self.domain,)
        return [kinds[i % len(kinds)] for i in range(self.num_sequences)]  # type: ignore[misc]

    def _cut(self, tokenizer: Tokenizer, kind: corpus.Kind, gen: torch.Generator) -> list[int]:
        """Return tokens of the train split from a random place on."""
        text = corpus.text(kind, "train")
        size = min(len(text), self.length * _CHARS_PER_TOKEN)
        ids: list[int] = []
        while len(ids) < self.length:  # a passage of long runs of blanks gives few tokens
            start = int(torch.randint(0, len(text) - size + 1, (1,), generator=gen))
            ids += tokenizer.encode(text[start : start + size], add_special_tokens=False)
        return ids[: self.length]
