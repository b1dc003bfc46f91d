"""The pipeline's configuration: read, completed with defaults, and checked before anything runs.

    config = load_config("config/config.yaml", schema_path="workflow/schemas/config.schema.yaml")

The schema is the single source of keys, defaults and descriptions. Values that belong to another
part of infopt (engine options, workload options, objectives) are checked by that part, so that a
misspelt option is an error now and not after an hour of measuring.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from infopt.cache.eviction import read_eviction
from infopt.config import EngineConfig
from infopt.errors import ConfigError, InfoptError, check_known_keys, check_mapping, nearest
from infopt.experiments.defaults import complete, resolve
from infopt.experiments.slice_spec import merged
from infopt.schemas import dotted
from infopt.yaml_input import read_yaml

Config = dict[str, Any]

_STAGES_WITH_SLICES = ("batching", "quantization", "kv_cache", "speculative", "moe")


def load_schema(path: str | Path) -> dict[str, Any]:
    """Read the configuration's schema."""
    import yaml

    return yaml.safe_load(Path(path).read_text("utf-8"))


def load_config(path: str | Path | None, schema_path: str | Path) -> Config:
    """Read a configuration file and complete it with the defaults.

    Args:
        path: YAML file; None for the defaults alone.
        schema_path: The schema.

    Raises:
        ConfigError: The file is absent or broken, a key is unknown, or a value impossible.
    """
    return complete_config(read_config(path) if path else {}, load_schema(schema_path))


def complete_config(config: Mapping[str, Any], schema: Mapping[str, Any]) -> Config:
    """Return the configuration with all defaults, checked.

    Args:
        config: What the user wrote.
        schema: The configuration's schema.

    Raises:
        ConfigError: Names the key, its value, and the nearest valid one.
    """
    full = complete(schema, _with_plain_days(config))
    _check_schema(full, schema)
    _check_references(full)
    _check_engine_options(full)
    _check_other_options(full)
    return full


def _with_plain_days(value: Any) -> Any:
    """Return a document with days as text: YAML makes dates of them, which JSON does not know."""
    if isinstance(value, Mapping):
        return {key: _with_plain_days(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_plain_days(item) for item in value]
    return value.isoformat() if isinstance(value, datetime.date) else value


def settings_table(schema: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return (dotted key, default as YAML, description) of every key, for documentation."""
    return list(_settings(schema, schema, ""))


def _settings(
    schema: Mapping[str, Any], node: Mapping[str, Any], prefix: str
) -> Iterator[tuple[str, str, str]]:
    for key, reference in node.get("properties", {}).items():
        child = resolve(schema, reference)
        has_parts = "properties" in child
        default = "" if has_parts else _as_yaml(child["default"]) if "default" in child else "-"
        yield f"{prefix}{key}", default, " ".join(child["description"].split())
        yield from _settings(schema, child, f"{prefix}{key}.")
        entry = resolve(schema, child.get("additionalProperties") or child.get("items") or {})
        yield from _settings(schema, entry, f"{prefix}{key}.<name>.")


def _as_yaml(value: Any) -> str:
    import yaml

    if isinstance(value, dict) and any(isinstance(v, dict) for v in value.values()):
        return "see `config.yaml`"
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6, sort_keys=False)
    return f"`{text.strip().removesuffix('...').strip()}`"


def read_config(path: str | Path) -> Config:
    """Return what a configuration file says, without the defaults.

    Args:
        path: YAML file; an empty one says nothing.

    Raises:
        ConfigError: It cannot be read, holds no mapping, or has a key twice.
    """
    document = read_yaml(path, field="configfile")
    if document is None:
        return {}
    check_mapping(document, str(path))
    return document


def _check_schema(config: Config, schema: Mapping[str, Any]) -> None:
    from jsonschema import Draft202012Validator

    faults = list(Draft202012Validator(schema).iter_errors(config))
    # An unknown key often explains the other faults: it goes first.
    faults.sort(key=lambda f: (f.validator != "additionalProperties", list(map(str, f.path))))
    if not faults:
        return
    fault = faults[0]
    where = dotted(fault.absolute_path)
    if fault.validator == "additionalProperties":
        check_known_keys(fault.instance, fault.schema["properties"], where or "the configuration")
    if fault.validator == "required":
        missing = next(k for k in fault.validator_value if k not in fault.instance)
        where = f"{where}.{missing}" if where else missing
    raise ConfigError(
        f"Configuration key {where!r}: {fault.message}.", field=where, value=fault.instance
    )


def _check_references(config: Config) -> None:
    """Check names that must exist elsewhere in the configuration."""
    for where, entry in slices(config):
        _check_workload_name(config, f"{where}.workload", entry["workload"])
        if entry["latency_workload"]:
            _check_workload_name(config, f"{where}.latency_workload", entry["latency_workload"])
        for cell in entry["cells"]:
            _check_workload_name(config, f"{where}.cells.workload", cell["workload"])
    for key in ("latency_workload", "load_workload"):
        _check_workload_name(config, f"baseline.{key}", config["baseline"][key])
    for stage in ("serving", "select"):
        _check_workload_name(config, f"{stage}.workload", config[stage]["workload"])
    for name, entry in config["power"].items():
        _check_workload_name(config, f"power.{name}.workload", entry["workload"])
    for where, entry in _with_candidates(config):
        slugs = [c["slug"] for c in entry["candidates"]]
        _check_slugs(where, slugs)
        for key in ("reference", "prefers"):
            _check_candidate(f"{where}.{key}", entry.get(key) or slugs[0], slugs)


def _check_candidate(where: str, slug: str, slugs: list[str]) -> None:
    if slug not in slugs:
        raise ConfigError(
            f"{where}: {slug!r} is no candidate.{nearest(slug, slugs)}",
            field=where,
            value=slug,
            remedy=f"Candidates: {', '.join(slugs)}.",
        )


def slices(config: Config) -> list[tuple[str, dict[str, Any]]]:
    """Return (dotted name, entry) of every slice that the configuration lists."""
    return [
        (f"{stage}.{name}", entry)
        for stage in _STAGES_WITH_SLICES
        for name, entry in config[stage].items()
    ]


def _with_candidates(config: Config) -> list[tuple[str, dict[str, Any]]]:
    """Return (dotted name, entry) of everything that lists candidates."""
    power = [(f"power.{name}", entry) for name, entry in config["power"].items()]
    found = [*slices(config), ("baseline", config["baseline"]), *power]
    return [(where, entry) for where, entry in found if "candidates" in entry]


def _check_workload_name(config: Config, where: str, name: str) -> None:
    if name not in config["workloads"]:
        raise ConfigError(
            f"{where}: there is no workload {name!r}.{nearest(name, config['workloads'])}",
            field=where,
            value=name,
            remedy=f"Workloads: {', '.join(config['workloads'])}.",
        )


def _check_slugs(where: str, slugs: list[str]) -> None:
    for slug in slugs:
        if slugs.count(slug) > 1:
            raise ConfigError(
                f"{where}.candidates: two candidates are called {slug!r}.",
                field=f"{where}.candidates",
                value=slug,
            )


def _check_engine_options(config: Config) -> None:
    for where, options, has_own_model in _engine_options(config):
        if "model" in options and not has_own_model:
            raise ConfigError(
                f"{where}: the model is set once, at the top.",
                field=f"{where}.model",
                value=options["model"],
                remedy="Use the key `model` and one results_dir per model. Candidates may have "
                "other models where their slice has one of its own, or routes.",
            )
        try:
            EngineConfig.from_dict({"model": config["model"], **options})
            read_eviction(options.get("kv_eviction"))
        except ConfigError as error:
            raise ConfigError(
                f"{where}: {error.message}",
                field=f"{where}.{error.field}",
                value=error.value,
                remedy=error.remedy,
            ) from error


def _engine_options(config: Config) -> Iterator[tuple[str, dict[str, Any], bool]]:
    """Yield the options as they will be combined for each candidate, and who names its model."""
    yield "engine", config["engine"], False
    for where, entry in _with_candidates(config):
        shared = merged(config["engine"], entry.get("engine", {}))
        for candidate in entry["candidates"]:
            name = f"{where}.candidates.{candidate['slug']}"
            names_models = bool(entry.get("model") or entry.get("routing"))
            yield name, merged(shared, candidate["engine"]), names_models


def _check_other_options(config: Config) -> None:
    from infopt.bench.load_sweep import check_rates
    from infopt.bench.rates import at_rate
    from infopt.bench.slo import SLO
    from infopt.bench.workloads import workload_options
    from infopt.energy import EnergyConstants
    from infopt.energy.prices import Prices
    from infopt.experiments.measures import check_measures
    from infopt.select.objectives import OBJECTIVES
    from infopt.select.quality import get_floor

    for where, entry in slices(config):
        with_field(where, lambda entry=entry: check_measures(entry))
    with_field("slo", lambda: SLO.from_spec(config["slo"]))
    with_field("quality_floor", lambda: get_floor(config["quality_floor"]))
    constants = config["energy"]["constants"]
    with_field("energy.constants", lambda: EnergyConstants.from_dict(constants))
    with_field("prices", lambda: Prices.from_dict(config["prices"]))
    served = config["workloads"][config["serving"]["workload"]]
    rates = with_field("serving.rates", lambda: check_rates(config["serving"]["rates"]))
    if served["kind"] != "trace":  # whose file is read when it is replayed
        with_field("serving.workload", lambda: at_rate(served, rates[0]))
    with_field("select.objective", lambda: OBJECTIVES.get(config["select"]["objective"]))
    for name, spec in config["workloads"].items():
        where = f"workloads.{name}"
        known = with_field(where, lambda spec=spec: workload_options(spec["kind"]))
        options = {key: value for key, value in spec.items() if key != "kind"}
        check_known_keys(options, known, f"{where} ({spec['kind']})")
        for option, is_required in known.items():
            if is_required and option not in options:
                raise ConfigError(
                    f"{where}: a {spec['kind']} workload needs {option!r}.",
                    field=f"{where}.{option}",
                )


def with_field(where: str, check: Any) -> Any:
    """Call ``check``; an error of infopt becomes a ``ConfigError`` that says where."""
    try:
        return check()
    except InfoptError as error:
        raise ConfigError(
            f"{where}: {error.message}", field=where, value=error.value, remedy=error.remedy
        ) from error


def settings_markdown(schema: Mapping[str, Any]) -> str:
    """Return `settings_table` as a Markdown table."""
    rows = ["| key | default | meaning |", "|---|---|---|"]
    for key, default, description in settings_table(schema):
        text = description.replace("|", "\\|")
        rows.append(f"| `{key}` | {default} | {text} |")
    return "\n".join(rows)
