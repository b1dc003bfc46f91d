"""The notebooks themselves: they run without the pipeline, on a model that takes no download."""

import ast
from pathlib import Path

import nbformat
import pytest

from infopt.experiments.random_model import write_random_model
from infopt.notebooks import parameter_names, read_notebook, run_notebook

pytestmark = pytest.mark.notebook
FOLDER = Path(__file__).parents[2] / "notebooks"
NAMES = (
    "00_quickstart",
    "10_roofline",
    "20_batching",
    "30_quantization",
    "40_kv_cache",
    "50_speculative",
    "60_moe_routing",
    "70_power_cost",
    "90_tradeoffs",
)


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_explains_more_than_it_computes(name):
    """Logic belongs into the package: a notebook defines nothing and loops over nothing."""
    notebook = read_notebook(FOLDER / f"{name}.ipynb")
    code = [c.source for c in notebook.cells if c.cell_type == "code"]
    prose = [c.source for c in notebook.cells if c.cell_type == "markdown"]
    assert "**The question.**" in prose[0]
    assert any(text.startswith("## The answer") for text in prose)
    forbidden = (ast.FunctionDef, ast.ClassDef, ast.For, ast.While)
    for source in code:
        assert len(source.splitlines()) <= 20, source
        assert not any(isinstance(node, forbidden) for node in ast.walk(ast.parse(source)))
    assert sum(map(len, prose)) > sum(map(len, code)) / 2
    assert "results_dir" in (parameter_names(notebook) or [])


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_without_the_pipeline(name, tmp_path, monkeypatch):
    monkeypatch.setenv("INFOPT_CACHE_DIR", str(tmp_path / "cache"))
    model = write_random_model(tmp_path / "model")
    run = run_notebook(
        FOLDER / f"{name}.ipynb",
        tmp_path / "out.ipynb",
        parameters={"model": model, "results_dir": tmp_path / "nothing"},
        html_path=tmp_path / "out.html",
        timeout_s=600,
        show_progress=False,
    )
    cells = nbformat.read(run.executed_path, 4).cells
    assert "make run" in (tmp_path / "out.html").read_text()
    pictures = [o for c in cells for o in c.get("outputs", []) if "image/png" in o.get("data", {})]
    assert pictures
