"""``KEY=VALUE`` text of the command line turned into plain data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from infopt.errors import ConfigError


def parse_pairs(pairs: Iterable[str], option: str) -> dict[str, Any]:
    """Read ``KEY=VALUE`` texts; values follow YAML, so ``8``, ``true`` and ``null`` have types.

    Raises:
        ConfigError: For a text without ``=`` and for a key given twice.
    """
    out: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key.strip():
            raise ConfigError(
                f"--{option.replace('_', '-')} wants KEY=VALUE, got {pair!r}.",
                field=option,
                value=pair,
            )
        if key.strip() in out:
            raise ConfigError(
                f"--{option.replace('_', '-')} gives {key.strip()!r} twice.",
                field=option,
                value=pair,
            )
        out[key.strip()] = parse_value(text, option)
    return out


def parse_mapping(texts: Iterable[str], option: str, name_key: str | None = None) -> dict[str, Any]:
    """Read ``KEY=VALUE`` texts, one JSON object, or a lone name.

    Args:
        texts: What was typed.
        option: The option.
        name_key: Key that a lone word stands for; None where there is none.

    Raises:
        ConfigError: As `parse_pairs`; or JSON that is no object, or goes with other texts.
    """
    given = list(texts)
    if name_key is not None and len(given) == 1 and given[0].strip().isidentifier():
        return {name_key: given[0].strip()}
    if not any(text.lstrip().startswith("{") for text in given):
        return parse_pairs(given, option)
    value = parse_value(given[0], option) if len(given) == 1 else None
    if not isinstance(value, dict):
        raise ConfigError(
            f"--{option.replace('_', '-')} wants one JSON object, got {' '.join(given)!r}.",
            field=option,
            value=given,
        )
    return value


def parse_value(text: str, option: str) -> Any:
    """Read one value as YAML reads it.

    Raises:
        ConfigError: If the text is no YAML value.
    """
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(
            f"--{option.replace('_', '-')}: cannot read the value {text!r}.",
            field=option,
            value=text,
            remedy="Put text with special characters into quotes.",
        ) from error


def parse_spec(text: str, option: str) -> str | dict[str, Any]:
    """Read the name of a preset, or ``KEY=VALUE,KEY=VALUE``."""
    return parse_pairs(text.split(","), option) if "=" in text else text


def parse_arm(text: str) -> tuple[str, dict[str, Any]]:
    """Read ``NAME=KEY=VALUE,KEY=VALUE`` (or ``NAME=`` for no change) of ``--arm``.

    Raises:
        ConfigError: If the name or a ``=`` is missing.
    """
    name, equals, rest = text.partition("=")
    if not equals or not name.strip():
        raise ConfigError(
            f"--arm wants NAME=KEY=VALUE,..., got {text!r}.",
            field="arm",
            value=text,
            remedy="For example: --arm static=scheduling=static,max_num_seqs=8",
        )
    return name.strip(), parse_pairs([p for p in rest.split(",") if p.strip()], "arm")
