"""Policy files: YAML or JSON, read back without loss; never code."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infopt.errors import ConfigError, check_known_keys
from infopt.results.files import write_text_atomic
from infopt.select.routing.policy import POLICIES, PairPolicy
from infopt.yaml_input import read_yaml

VERSION = 1
"""Of the form of the file."""

_WIDTH = 98


def policy_to_dict(policy: PairPolicy) -> dict[str, Any]:
    """Return plain data: version, kind, and the fields of the policy."""
    values = dataclasses.asdict(policy)
    plain = json.loads(json.dumps(values, allow_nan=False))  # tuples become lists
    if "classes" in plain:
        plain["classes"] = [
            {key: value for key, value in item.items() if value is not None}
            for item in plain["classes"]
        ]
    return {"version": VERSION, "kind": policy.kind, **plain}


def policy_from_dict(data: Mapping[str, Any]) -> PairPolicy:
    """Read plain data.

    Raises:
        ConfigError: Names the unknown, missing or wrong field.
    """
    if not isinstance(data, Mapping):
        raise ConfigError(f"A policy must be a mapping, got {data!r}.", field="policy", value=data)
    if data.get("version") != VERSION:
        raise ConfigError(
            f"version must be {VERSION}, got {data.get('version')!r}.",
            field="version",
            value=data.get("version"),
            remedy="Write the policy again with this release.",
        )
    cls = POLICIES.get(str(data.get("kind")))
    values = {key: value for key, value in data.items() if key not in ("version", "kind")}
    fields = dataclasses.fields(cls)
    check_known_keys(values, [f.name for f in fields], f"the routing policy {cls.kind}")
    for f in fields:
        if f.name not in values and f.default is dataclasses.MISSING:
            raise ConfigError(f"The routing policy {cls.kind} lacks {f.name!r}.", field=f.name)
    return cls(**values)


def write_policy(policy: PairPolicy, path: str | Path) -> Path:
    """Write a policy, as JSON where the name ends so, else as YAML; atomically."""
    data = policy_to_dict(policy)
    if Path(path).suffix == ".json":
        return write_text_atomic(path, json.dumps(data, ensure_ascii=False) + "\n")
    import yaml

    body = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=_WIDTH)
    return write_text_atomic(path, f"# Serve it: infopt serve MODEL... --route {path}\n{body}")


def read_policy(path: str | Path) -> PairPolicy:
    """Read a policy file (JSON is YAML, too).

    Raises:
        ConfigError: The file is absent or broken, or a field is wrong; file and field are named.
    """
    data = read_yaml(path, field="route")
    try:
        return policy_from_dict(data)
    except ConfigError as error:
        raise ConfigError(
            f"{path}: {error.message}", field=error.field, value=error.value, remedy=error.remedy
        ) from None
