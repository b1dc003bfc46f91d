"""Command-line options read from a dataclass, so that they can never drift from it.

>>> @add_options(engine=Group(EngineConfig, skip=("model",)))
... def command(model: str, *, engine: dict[str, Any]) -> None: ...

gives ``command`` one option per field of `EngineConfig`: type and choices from the annotation, help
from the ``Attributes:`` section of the docstring. The command receives a dict that holds only what
the user typed.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import textwrap
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import typer

from infopt.cli.values import parse_mapping
from infopt.errors import InfoptError

_ENTRY = re.compile(r"^(\w+(?:, \w+)*): ", re.MULTILINE)
_MAPPING_METAVAR = "KEY=VALUE"


@dataclass(frozen=True)
class Group:
    """The options of one dataclass.

    Attributes:
        cls: The dataclass.
        title: Heading in the help.
        skip: Fields that are no options.
        prefix: Put before the option names given in ``prefixed``.
        prefixed: Fields whose plain name belongs to another group.
        defaults: Values that the command uses in place of the dataclass' own.
        name_keys: Key that a lone word stands for, by mapping field (``method`` of ``ngram``).
    """

    cls: type
    title: str
    skip: tuple[str, ...] = ()
    prefix: str = ""
    prefixed: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    name_keys: Mapping[str, str] = field(default_factory=dict)

    def fields(self) -> list[dataclasses.Field[Any]]:
        """Return the fields that are options, in order."""
        return [f for f in dataclasses.fields(self.cls) if f.name not in self.skip]

    def parameter_name(self, name: str) -> str:
        """Return the option name of a field, with underscores."""
        return f"{self.prefix}{name}" if name in self.prefixed else name


def add_options(**groups: Group) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that replaces each keyword parameter ``name`` by a group's options."""

    def decorator(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def wrapper(**values: Any) -> None:
            for name, group in groups.items():
                values[name] = _take(group, values)
            command(**values)

        wrapper.__signature__ = _signature(command, groups)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {}
        del wrapper.__wrapped__  # type: ignore[attr-defined]
        return wrapper

    return decorator


def attribute_docs(cls: type) -> dict[str, str]:
    """Return the text of each entry in the ``Attributes:`` section of a class docstring."""
    _, _, section = inspect.cleandoc(cls.__doc__ or "").partition("Attributes:\n")
    pieces = _ENTRY.split(textwrap.dedent(section))
    docs: dict[str, str] = {}
    for names, text in zip(pieces[1::2], pieces[2::2], strict=True):
        docs |= dict.fromkeys(names.split(", "), " ".join(text.split()))
    return docs


def _take(group: Group, values: dict[str, Any]) -> dict[str, Any]:
    """Move a group's options out of ``values``; options that were not typed are left out."""
    taken: dict[str, Any] = dict(group.defaults)
    hints = get_type_hints(group.cls)
    for f in group.fields():
        value = values.pop(group.parameter_name(f.name))
        if value:
            is_mapping = _is_mapping(_without_none(hints[f.name]))
            name_key = group.name_keys.get(f.name)
            taken[f.name] = parse_mapping(value, f.name, name_key) if is_mapping else value
        elif value is not None and not isinstance(value, list | tuple):
            taken[f.name] = value  # 0, 0.0, False and "" are values; an empty list is "not given"
    return taken


def _signature(command: Callable[..., None], groups: Mapping[str, Group]) -> inspect.Signature:
    original = inspect.signature(command, eval_str=True)
    parameters = [p for p in original.parameters.values() if p.name not in groups]
    for group in groups.values():
        parameters += _parameters(group)
    return original.replace(
        parameters=[p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    )


def _parameters(group: Group) -> list[inspect.Parameter]:
    hints, docs = get_type_hints(group.cls), attribute_docs(group.cls)
    out = []
    for f in group.fields():
        option = typer.Option(
            _declaration(group.parameter_name(f.name), _without_none(hints[f.name])),
            help=docs.get(f.name, ""),
            show_default=_shown_default(group, f),
            rich_help_panel=group.title,
            metavar=_metavar(group, f.name) if _is_mapping(_without_none(hints[f.name])) else None,
        )
        out.append(
            inspect.Parameter(
                group.parameter_name(f.name),
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=Annotated[_option_type(f.name, hints[f.name]), option],
            )
        )
    return out


def _metavar(group: Group, name: str) -> str:
    key = group.name_keys.get(name)
    return f"{key.upper()}|{_MAPPING_METAVAR}|JSON" if key else f"{_MAPPING_METAVAR}|JSON"


def _declaration(name: str, hint: Any) -> str:
    flag = name.replace("_", "-")
    return f"--{flag}/--no-{flag}" if hint is bool else f"--{flag}"


def _shown_default(group: Group, f: dataclasses.Field[Any]) -> str | bool:
    value = group.defaults.get(f.name, f.default)
    return False if value in (None, (), dataclasses.MISSING) else str(value)


def _without_none(hint: Any) -> Any:
    if get_origin(hint) in (Union, types.UnionType):
        rest = [a for a in get_args(hint) if a is not type(None)]
        return rest[0] if len(rest) == 1 else hint
    return hint


def _is_mapping(hint: Any) -> bool:
    origin = get_origin(hint)
    return inspect.isclass(origin) and issubclass(origin, Mapping)


def _option_type(name: str, hint: Any) -> Any:
    """Return what Typer should read for a field; every option may be absent."""
    hint = _without_none(hint)
    if hint in (str, int, float, bool) or get_origin(hint) is Literal:
        return hint | None if isinstance(hint, type) else Union[hint, None]  # noqa: UP007
    if _is_mapping(hint):
        return list[str] | None
    if get_origin(hint) is tuple and len(args := get_args(hint)) == 2 and args[1] is ...:
        return list[args[0]] | None  # type: ignore[valid-type]
    raise InfoptError(f"Field {name!r} of type {hint} has no command-line form.", field=name)
