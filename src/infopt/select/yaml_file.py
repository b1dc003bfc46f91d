"""``recommendation.yaml``: written for people, read back without loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from infopt.config import EngineConfig
from infopt.errors import ConfigError, ResultError
from infopt.results.files import write_text_atomic
from infopt.results.plain import to_plain
from infopt.schemas import validate
from infopt.select.ablation import Effect
from infopt.select.front import Front
from infopt.select.interactions import Interaction
from infopt.select.recommendation import (
    BaselineGain,
    Evidence,
    Nearest,
    Recommendation,
    Rejected,
    Sensitivity,
    Tie,
)
from infopt.yaml_input import read_yaml

SCHEMA = "recommendation"
_WIDTH = 98


def write_recommendation(recommendation: Recommendation, path: str | Path) -> Path:
    """Write a recommendation as commented YAML, atomically.

    Raises:
        ResultError: A value is NaN or infinite.
    """
    import yaml

    document = to_plain(recommendation.to_dict())
    validate(document, SCHEMA, where=str(path))
    body = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=_WIDTH)
    return write_text_atomic(path, _header(recommendation, Path(path)) + body)


def read_recommendation(path: str | Path) -> Recommendation:
    """Read a recommendation.

    Raises:
        ResultError: The file is absent, broken, or has an unknown key (it is named).
    """
    document = _load(Path(path))
    validate(document, SCHEMA, where=str(path), remedy=_REMEDY)
    values = {key: value for key, value in document.items() if key != "schema_version"}
    for key, cls in _LISTS.items():
        values[key] = tuple(cls(**entry) for entry in values.get(key, ()))
    if values.get("front") is not None:
        front = values["front"]
        values["front"] = Front(
            **{**front, "axes": tuple(front["axes"]), "runs": tuple(front["runs"])}
        )
    values["rejected"] = tuple(
        Rejected(entry["run"], tuple(entry["reasons"])) for entry in values["rejected"]
    )
    values["notes"] = tuple(values["notes"])
    if values["nearest"] is not None:
        nearest = values["nearest"]
        values["nearest"] = Nearest(nearest["run"], tuple(nearest["misses"]), nearest["config"])
    if values["config"] is not None:
        _check_config(values["config"], Path(path))
    return Recommendation(**values)


_LISTS: dict[str, Any] = {
    "evidence": Evidence,
    "ties": Tie,
    "sensitivity": Sensitivity,
    "baselines": BaselineGain,
    "ablation": Effect,
    "interactions": Interaction,
}
_REMEDY = "Correct the key, or let the pipeline write the file again."


def _check_config(config: dict[str, Any], path: Path) -> None:
    try:
        EngineConfig.from_dict(config)
    except ConfigError as error:
        raise ResultError(
            f"{path}: config: {error.message}",
            field=f"config.{error.field}",
            value=error.value,
            remedy=error.remedy,
        ) from error


def _load(path: Path) -> Any:
    if not path.exists():
        raise ResultError(
            f"There is no recommendation at {path}.",
            field="path",
            value=str(path),
            remedy="Run the pipeline (`make run`) first, or give the path of a recommendation.",
        )
    return read_yaml(path, field="path", error=ResultError)


def _header(recommendation: Recommendation, path: Path) -> str:
    lines = [
        "The configuration that infopt recommends for one machine, workload and objective.",
        "",
        f"Status: {recommendation.status}",
        f"Chosen: {recommendation.run or 'nothing: see nearest'}",
        f"Why:    {recommendation.reason}",
        "",
        "Use it:",
        *_usage(recommendation, path),
        "",
        "`config` is a complete EngineConfig: change a value and it holds; an unknown key is an",
        "error. The rest says what the choice rests on. Numbers in evidence are in the unit beside",
        "them; slo and sensitivity are in seconds.",
    ]
    return "".join(f"# {line}".rstrip() + "\n" for line in _wrapped(lines))


def _usage(recommendation: Recommendation, path: Path) -> list[str]:
    if recommendation.config is None:
        return ["  (relax the objective or the quality floor: infopt recommend --help)"]
    return [
        "  from infopt import LLM",
        "  from infopt.select import read_recommendation",
        f'  llm = LLM(config=read_recommendation("{path.name}").engine_config())',
        "Choose again from the same measurements: infopt recommend --help",
    ]


def _wrapped(lines: list[str]) -> list[str]:
    import textwrap

    wrapped: list[str] = []
    for line in lines:
        indent = " " * 8 if line.startswith("Why:") else ""
        parts = textwrap.wrap(line, _WIDTH - 2, subsequent_indent=indent, drop_whitespace=True)
        wrapped += [line] if line.startswith("  ") or not parts else parts
    return wrapped
