"""Options of a command are the fields of a dataclass, no more and no less."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
import typer
from typer.testing import CliRunner

from infopt.cli.engine import ENGINE_OPTIONS
from infopt.cli.generate import SAMPLING_OPTIONS
from infopt.cli.options import Group, add_options, attribute_docs
from infopt.config import EngineConfig
from infopt.errors import InfoptError
from infopt.sampling_params import SamplingParams


@dataclass(frozen=True)
class Example:
    """A dataclass.

    Attributes:
        count: How many;
            over two lines.
        kind, other: Two fields with one text.
        flag: A switch.
        names: Several.
        weights: By name.
        limit: None means no limit.
    """

    count: int = 3
    kind: Literal["a", "b"] = "a"
    other: float = 0.5
    flag: bool = True
    names: tuple[str, ...] = ()
    weights: Mapping[str, float] = field(default_factory=dict)
    limit: int | None = None


def parse(*args: str, **group_options: Any) -> dict[str, Any]:
    """Return what a command with the options of `Example` receives."""
    seen: dict[str, Any] = {}

    @add_options(example=Group(Example, "Example", **group_options))
    def command(*, name: str = "x", example: dict[str, Any]) -> None:
        seen.update(example)

    app = typer.Typer()
    app.command()(command)
    result = CliRunner().invoke(app, list(args))
    assert result.exit_code == 0, result.output
    return seen


def test_what_is_not_typed_is_left_out() -> None:
    assert parse() == {}


def test_every_type_arrives_as_the_dataclass_wants_it() -> None:
    options = ["--count", "0", "--kind", "b", "--other", "1.5", "--no-flag", "--limit", "7"]
    options += ["--names", "u", "--names", "v", "--weights", "a=1.5", "--weights", "b=2"]
    values = parse(*options)
    assert values == {
        "count": 0,
        "kind": "b",
        "other": 1.5,
        "flag": False,
        "limit": 7,
        "names": ["u", "v"],
        "weights": {"a": 1.5, "b": 2},
    }
    assert Example(**values).limit == 7


def test_a_mapping_may_be_json_or_a_name() -> None:
    assert parse("--weights", '{"a": 2}') == {"weights": {"a": 2}}
    assert parse("--weights", "light", name_keys={"weights": "kind"}) == {
        "weights": {"kind": "light"}
    }
    assert ENGINE_OPTIONS.name_keys == {"speculative": "method"}


def test_command_defaults_yield_to_typed_values() -> None:
    assert parse(defaults={"count": 9}) == {"count": 9}
    assert parse("--count", "4", defaults={"count": 9}) == {"count": 4}


def test_docs_come_from_the_attributes_section() -> None:
    docs = attribute_docs(Example)
    assert docs["count"] == "How many; over two lines."
    assert docs["kind"] == docs["other"] == "Two fields with one text."
    assert docs["limit"] == "None means no limit."


def test_a_type_without_a_form_is_refused_when_the_command_is_built() -> None:
    @dataclass
    class Odd:
        value: complex = 0j

    with pytest.raises(InfoptError, match="value"):
        add_options(odd=Group(Odd, "Odd"))(lambda *, odd: None)


@pytest.mark.parametrize(
    ("group", "cls"), [(ENGINE_OPTIONS, EngineConfig), (SAMPLING_OPTIONS, SamplingParams)]
)
def test_no_field_is_missing_or_undocumented(group: Group, cls: type) -> None:
    names = {f.name for f in group.fields()} | set(group.skip)
    assert names == {f.name for f in dataclasses.fields(cls)}
    docs = attribute_docs(cls)
    assert all(docs.get(f.name) for f in group.fields())


def test_help_of_generate_lists_every_option(run_cli: Any) -> None:
    text = run_cli("generate", "--help").output
    for group in (ENGINE_OPTIONS, SAMPLING_OPTIONS):
        for f in group.fields():
            assert f"--{group.parameter_name(f.name).replace('_', '-')}" in text
    assert "--engine-seed" in text  # --seed is the sampler's
