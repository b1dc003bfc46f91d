"""Named errors: every failure a user can cause says which field, which value, and what to do.

All errors derive from :class:`InfoptError`, so that ``except InfoptError`` catches everything that
is a user's to fix and nothing that is a bug. ``assert`` is left for internal invariants.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any


class InfoptError(Exception):
    """Base of all errors a user can cause.

    Args:
        message: What went wrong, in one sentence, with the offending value in it.
        field: Name of the option, file or request field at fault.
        value: The offending value.
        remedy: What to do about it.
    """

    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        value: object = None,
        remedy: str | None = None,
    ) -> None:
        """Keep the parts apart, so that a server can put them into separate JSON keys."""
        self.message = message
        self.field = field
        self.value = value
        self.remedy = remedy
        super().__init__(f"{message} {remedy}" if remedy else message)


class ConfigError(InfoptError):
    """An engine, pipeline or command-line option is unknown or has an impossible value."""


class WeightFormatError(ConfigError):
    """A quantization scheme does not fit the weights of a model: their format, or their shape."""


class DraftModelError(ConfigError):
    """A drafter does not fit the model that it guesses for (another vocabulary or width, say)."""


class SamplingParamsError(InfoptError):
    """A sampling parameter is out of range or contradicts another one."""


class PromptError(InfoptError):
    """A prompt is empty, malformed, or holds token ids outside the vocabulary."""


class PromptTooLongError(PromptError):
    """A prompt (plus the tokens asked for) does not fit ``max_model_len``."""


class CapacityError(InfoptError):
    """A request can never fit the KV pool of this engine."""


class QueueFullError(InfoptError):
    """The waiting queue is at its limit; try again later."""


class ModelNotFoundError(InfoptError):
    """No registry entry, folder or file answers to this model name."""


class DownloadError(InfoptError):
    """A registered source could not be fetched."""


class ChecksumError(InfoptError):
    """A fetched or cached file does not have the registered sha256."""


class CheckpointError(InfoptError):
    """A checkpoint is incomplete, inconsistent or holds tensors nobody asked for."""


class UnsupportedModelError(InfoptError):
    """The architecture, rope type or file format of a model is not supported."""


class BackendError(InfoptError):
    """A requested op backend is not available on this machine."""


class WorkloadError(InfoptError):
    """A workload description or a trace line is malformed."""


class MeasurementError(InfoptError):
    """A measurement cannot be trusted (too few samples, counter did not advance, ...)."""


class ResultError(InfoptError):
    """A result record or table does not match its schema."""


class DependencyError(InfoptError):
    """An optional package is needed for this and is not installed."""


class NotebookError(InfoptError):
    """A notebook cannot be executed as asked."""


def nearest(name: str, valid: Iterable[str]) -> str:
    """Return ``" Did you mean 'x'?"`` for the closest valid name, or an empty string.

    Args:
        name: What the user wrote.
        valid: The names that would have been accepted.
    """
    close = difflib.get_close_matches(str(name), list(valid), n=1, cutoff=0.5)
    return f" Did you mean {close[0]!r}?" if close else ""


def check_mapping(given: object, where: str) -> None:
    """Refuse what is no mapping where options belong.

    Args:
        given: What was passed.
        where: What is being configured, for the message.

    Raises:
        ConfigError: Names the value.
    """
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"{where} must be a mapping of options, got {given!r}.", field=where, value=given
        )


def check_known_keys(given: Mapping[str, Any], valid: Iterable[str], where: str) -> None:
    """Refuse unknown keys at a boundary (keyword arguments, YAML, JSON records), and what has none.

    Args:
        given: The options that were passed.
        valid: The keys that are understood.
        where: What is being configured, for the message.

    Raises:
        ConfigError: Names the first unknown key and the nearest valid one, or what is no mapping.
    """
    check_mapping(given, where)
    valid = sorted(valid)
    for key in given:
        if key not in valid:
            raise ConfigError(
                f"Unknown option {key!r} for {where}.{nearest(key, valid)}",
                field=str(key),
                remedy=f"Valid options: {', '.join(valid)}.",
            )
