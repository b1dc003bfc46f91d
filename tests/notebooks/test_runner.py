"""The notebook runner: checked before it runs, in this interpreter, nothing lost when it dies."""

import re
import sys
import time

import nbformat
import pytest

from infopt.errors import NotebookError
from infopt.notebooks import check_parameters, parameter_names, read_notebook, run_notebook

pytestmark = pytest.mark.notebook


def write_notebook(path, *cells, parameters="value = 1", kernel="python3"):
    notebook = nbformat.v4.new_notebook()
    if parameters is not None:
        tagged = nbformat.v4.new_code_cell(parameters, metadata={"tags": ["parameters"]})
        notebook.cells.append(tagged)
    notebook.cells += [nbformat.v4.new_code_cell(source) for source in cells]
    notebook.metadata["kernelspec"] = {"name": kernel, "display_name": kernel}
    nbformat.write(notebook, path)
    return path


def printed(path):
    outputs = [o for c in nbformat.read(path, 4).cells for o in c.get("outputs", [])]
    return "".join(o.get("text", "") for o in outputs)


def test_parameters_without_a_tagged_cell_are_refused_before_running(tmp_path):
    """Pins: values were dropped without a word and the report showed the defaults."""
    path = write_notebook(tmp_path / "a.ipynb", "open('ran', 'w')", parameters=None)
    with pytest.raises(NotebookError, match="tagged 'parameters'"):
        run_notebook(path, tmp_path / "out.ipynb", parameters={"value": 2}, working_dir=tmp_path)
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "out.ipynb").exists()


def test_an_unknown_parameter_is_named_before_running(tmp_path):
    """Pins: a misspelt parameter only drew a log line, and the default ran."""
    path = write_notebook(
        tmp_path / "a.ipynb", "open('ran', 'w')", parameters="results_dir = 'r'\nseed: int = 0"
    )
    with pytest.raises(NotebookError, match=r"'result_dir'.*'results_dir'") as error:
        run_notebook(
            path, tmp_path / "out.ipynb", parameters={"result_dir": "x"}, working_dir=tmp_path
        )
    assert error.value.field == "result_dir"
    assert not (tmp_path / "ran").exists()


def test_annotated_and_plain_parameters_are_found(tmp_path):
    path = write_notebook(tmp_path / "a.ipynb", parameters="a = 1\nb: int = 2\nprint(a)")
    notebook = read_notebook(path)
    assert parameter_names(notebook) == ["a", "b"]
    check_parameters(notebook, {"a": 3, "b": 4}, path)


def test_it_runs_in_this_interpreter_whatever_kernel_the_file_names(tmp_path):
    """Pins: the author's kernel name, absent here, ended the run or stayed in the copy."""
    path = write_notebook(
        tmp_path / "a.ipynb",
        "import sys; print(sys.executable, value, folder)",
        parameters="value = 1\nfolder = ''",
        kernel="my-lab-env",
    )
    html = tmp_path / "out.html"
    run = run_notebook(
        path,
        tmp_path / "out.ipynb",
        parameters={"value": 7, "folder": tmp_path},
        html_path=html,
        show_progress=False,
    )
    assert printed(run.executed_path).split() == [sys.executable, "7", str(tmp_path)]
    assert nbformat.read(run.executed_path, 4).metadata.kernelspec.name == "python3"
    assert str(tmp_path) in html.read_text()
    assert not re.search(
        r'<(script|link|img|iframe)\b[^>]*(src|href)="(https?:)?//', html.read_text()
    )
    assert nbformat.read(path, 4).metadata.kernelspec.name == "my-lab-env"  # input untouched


def test_a_killed_kernel_ends_the_run_and_keeps_what_was_printed(tmp_path):
    """Pins: a kernel killed by the system hung the run, or its output was lost."""
    path = write_notebook(
        tmp_path / "a.ipynb", "print('step 1')\nimport os\nos.kill(os.getpid(), 9)", "print('no')"
    )
    start_s = time.monotonic()
    with pytest.raises(NotebookError, match="kernel died"):
        run_notebook(path, tmp_path / "out.ipynb", timeout_s=60, show_progress=False)
    assert time.monotonic() - start_s < 60  # a hang guard, not a speed claim
    assert printed(tmp_path / "out.ipynb") == "step 1\n"


def test_a_failing_cell_is_named_and_the_copy_kept(tmp_path):
    path = write_notebook(tmp_path / "a.ipynb", "print('before')", "assert value == 2, 'too small'")
    with pytest.raises(NotebookError, match="AssertionError: too small") as error:
        run_notebook(path, tmp_path / "out.ipynb", html_path=tmp_path / "x.html")
    assert "before" in printed(tmp_path / "out.ipynb")
    assert str(tmp_path / "out.ipynb") in str(error.value)
    assert not (tmp_path / "x.html").exists()


def test_the_limit_holds_for_the_whole_notebook(tmp_path):
    path = write_notebook(tmp_path / "a.ipynb", "print('on')", "import time; time.sleep(600)")
    with pytest.raises(NotebookError, match="longer than its limit of 3 s"):
        run_notebook(path, tmp_path / "out.ipynb", timeout_s=3, show_progress=False)
    assert printed(tmp_path / "out.ipynb") == "on\n"


@pytest.mark.parametrize("content", ["{", "[]", "{}"])
def test_a_file_that_is_no_notebook_is_named(tmp_path, content):
    path = tmp_path / "x.ipynb"
    path.write_text(content)
    with pytest.raises(NotebookError, match="not a notebook"):
        run_notebook(path, tmp_path / "out.ipynb")


def test_a_missing_notebook_is_named(tmp_path):
    with pytest.raises(NotebookError, match="no notebook"):
        run_notebook(tmp_path / "none.ipynb", tmp_path / "out.ipynb")
