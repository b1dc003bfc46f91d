"""What the quickstart notebook says of a recommendation."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pandas as pd

from infopt.config import EngineConfig
from infopt.experiments.findings import quickstart
from infopt.select import Recommendation


def make_recommendation(config: dict[str, Any] | None) -> Recommendation:
    values = dict.fromkeys(inspect.signature(Recommendation).parameters)
    values |= dict.fromkeys(("ties", "sensitivity", "notes", "evidence", "rejected"), ())
    known = {"run": "select/f.a", "status": "chosen", "reason": "It is best.", "config": config}
    return Recommendation(**{**values, **known})


def answer(found: Recommendation | None) -> str:
    asked = [SimpleNamespace(num_cached_tokens=n, prompt_token_ids=[0] * 100) for n in (0, 90)]
    surprises = pd.DataFrame({"surprise (bits per token)": [5.0, 10.0]})
    return quickstart.answer(["a", "b"], surprises, asked, found)  # type: ignore[arg-type]


def test_the_recommendation_is_told_by_its_options() -> None:
    found = make_recommendation(EngineConfig(model="tiny-dense", max_num_seqs=5).to_dict())
    assert "is `model='tiny-dense'`, `max_num_seqs=5`." in answer(found)
    assert "**90%** of its prompt" in answer(found)
    assert "max_num_seqs: 5" in found._repr_html_()
    assert "block_size" not in found._repr_html_()  # at its default
    assert "engine_config()" in quickstart.recommendation_use(found)


def test_no_recommendation_is_said() -> None:
    nothing = make_recommendation(None)
    assert "that nothing is feasible" in answer(nothing)
    assert "nothing to load" in quickstart.recommendation_use(nothing)
    assert "not made yet" in answer(None)
