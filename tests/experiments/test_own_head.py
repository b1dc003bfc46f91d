"""The pipeline's own draft head is found by the candidates that ask for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from infopt.errors import ModelNotFoundError
from infopt.experiments.own_head import head_path, wants_head, with_head
from infopt.experiments.spec import SliceSpec
from infopt.results import write_json

CANDIDATES = {
    "off": {"speculative": None},
    "auto": {"speculative": {"method": "auto"}},
    "mine": {"speculative": {"method": "draft_head", "model": "a/folder"}},
    "head": {"speculative": {"method": "draft_head", "model": "trained"}, "dtype": "float32"},
}


def test_candidates_that_ask_for_it_get_its_folder(
    make_spec: Callable[..., SliceSpec], tmp_path: Path
) -> None:
    spec = make_spec(stage="speculative", reference="off", candidates=CANDIDATES)
    assert wants_head(spec)
    with pytest.raises(ModelNotFoundError, match="train_draft_head"):
        with_head(spec, tmp_path)
    write_json(head_path(tmp_path), {"folder": "here"})
    found = with_head(spec, tmp_path).candidates
    assert found["head"] == {
        "speculative": {"method": "draft_head", "model": "here"},
        "dtype": "float32",
    }
    assert {k: v for k, v in found.items() if k != "head"} == {
        k: v for k, v in CANDIDATES.items() if k != "head"
    }


def test_a_slice_without_one_needs_none(
    make_spec: Callable[..., SliceSpec], tmp_path: Path
) -> None:
    others = {k: v for k, v in CANDIDATES.items() if k != "head"}
    spec = make_spec(stage="speculative", reference="off", candidates=others)
    assert not wants_head(spec)
    assert with_head(spec, tmp_path) is spec
