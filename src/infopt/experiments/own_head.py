"""Candidates that ask for the pipeline's own draft head. Rules import this, so it is light."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infopt.errors import ModelNotFoundError
from infopt.experiments.slice_spec import SliceSpec
from infopt.results import read_json

TRAINED = "trained"
"""``model`` of a candidate with method ``draft_head`` that asks for the pipeline's own head."""


def head_path(results_dir: str | Path) -> Path:
    """Return where a run notes its head."""
    return Path(results_dir) / "models" / "draft_head.json"


def wants_head(spec: SliceSpec) -> bool:
    """Whether a candidate of a slice asks for the pipeline's head."""
    return any(_is_own(engine.get("speculative")) for engine in spec.candidates.values())


def with_head(spec: SliceSpec, results_dir: str | Path) -> SliceSpec:
    """Return a slice whose candidates name the folder of the head.

    Raises:
        ModelNotFoundError: It was not trained.
    """
    if not wants_head(spec):
        return spec
    path = head_path(results_dir)
    if not path.is_file():
        raise ModelNotFoundError(
            f"{path} does not say where the draft head is.",
            field="speculative.model",
            value=TRAINED,
            remedy="The rule train_draft_head makes it; or name a folder of infopt train-draft.",
        )
    folder = read_json(path)["folder"]
    candidates = {
        slug: _with_folder(engine, folder) if _is_own(engine.get("speculative")) else engine
        for slug, engine in spec.candidates.items()
    }
    return dataclasses.replace(spec, candidates=candidates)


def _with_folder(engine: Mapping[str, Any], folder: str) -> dict[str, Any]:
    return {**engine, "speculative": {**engine["speculative"], "model": folder}}


def _is_own(options: Mapping[str, Any] | None) -> bool:
    return bool(options) and options == {**options, "method": "draft_head", "model": TRAINED}
