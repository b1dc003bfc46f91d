"""Every family gives the answers of transformers alone, and docs/support.md says what was seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from infopt.evals.families.cases import CASES, FamilyCase
from infopt.evals.families.proof import MAX_ERROR, prove
from infopt.evals.families.reference import Agreement
from infopt.evals.families.table import support_page, table_row
from infopt.evals.families.write import write_checkpoint

PAGE = Path(__file__).parents[3] / "docs" / "support.md"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.family)
def test_family_agrees_with_transformers(case: FamilyCase, tmp_path: Path) -> None:
    write_checkpoint(case, tmp_path)
    proof = prove(case, tmp_path)
    assert proof.total.error <= MAX_ERROR
    assert proof.total.num_wrong == 0
    assert proof.holds
    line = table_row(proof)
    assert line in PAGE.read_text("utf-8").splitlines(), (
        f"docs/support.md does not have this line; python -m infopt.evals.families writes it:\n"
        f"{line}"
    )


def test_page_has_one_line_per_family_and_the_current_text() -> None:
    page = PAGE.read_text("utf-8")
    assert page.startswith(support_page([]).rstrip())
    lines = [line for line in page.splitlines() if line.startswith("| `")]
    assert [line.split("`")[1] for line in lines[1:]] == [case.family for case in CASES]


def test_weights_differ_from_family_defaults(tmp_path: Path) -> None:
    """Norms and selection biases away from their neutral values, so that leaving one out shows."""
    from safetensors.torch import load_file

    case = next(case for case in CASES if case.family == "deepseek_v3")
    write_checkpoint(case, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    norm = tensors["model.layers.0.input_layernorm.weight"]
    assert (norm - 1).abs().max() > 0.1
    bias = tensors["model.layers.1.mlp.gate.e_score_correction_bias"]
    assert bias.abs().max() > 0.01


def test_agreements_add_up() -> None:
    total = Agreement(1e-6, 10, 1, 0) + Agreement(2e-6, 5, 0, 2)
    assert total == Agreement(2e-6, 15, 1, 2)
