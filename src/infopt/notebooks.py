"""Run a notebook with parameters: checked before it runs, in this interpreter, nothing lost.

Papermill does the work; this module closes the gaps that let a wrong report look right:

* parameters without a cell tagged ``parameters``, or with a name that cell does not set, are errors
  before anything runs (Papermill alone runs the defaults and only logs a warning);
* the kernel is this very interpreter, whatever kernel name the author's machine left in the file;
* a kernel that dies or takes too long ends the run with a named error, and the executed copy holds
  everything printed up to then.

    run_notebook("notebooks/20_batching.ipynb", "out.ipynb", parameters={"results_dir": "results"},
                 html_path="out.html")
"""

from __future__ import annotations

import ast
import os
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from infopt.errors import NotebookError, nearest

if TYPE_CHECKING:
    from nbformat import NotebookNode

KERNEL_NAME = "python3"
"""The kernel name stored in every notebook; it stands for "the interpreter that runs this"."""

_FOREIGN_SCRIPT = re.compile(r'<script\b[^>]*\bsrc="https?://[^"]*"[^>]*>\s*</script>')

_SEND_S = 0.001  # for the socket's own thread, which cannot be waited for

# The working folder leaves the path first: a module there must not stand in for the library's.
_LAUNCH = (
    "import sys; sys.path.remove(''); import infopt.notebooks; infopt.notebooks.launch_kernel()"
)


class NotebookRun(NamedTuple):
    """What an executed notebook left behind.

    Attributes:
        executed_path: The executed copy.
        html_path: Its HTML rendering, if asked for.
        duration_s: Wall time of the execution.
    """

    executed_path: Path
    html_path: Path | None
    duration_s: float


def run_notebook(
    notebook_path: str | Path,
    executed_path: str | Path,
    *,
    parameters: Mapping[str, Any] | None = None,
    html_path: str | Path | None = None,
    timeout_s: float = 600.0,
    working_dir: str | Path | None = None,
    show_progress: bool = True,
) -> NotebookRun:
    """Execute a notebook and keep the executed copy, also when it fails.

    Args:
        notebook_path: The notebook to run; it is not changed.
        executed_path: Where the executed copy goes; written after each cell.
        parameters: Values for names that the tagged cell sets.
        html_path: Where to render the executed copy, if at all.
        timeout_s: Limit for the whole notebook, in seconds.
        working_dir: Folder the kernel starts in (default: the current one).
        show_progress: Whether to draw a progress bar over the cells.

    Returns:
        Paths and duration.

    Raises:
        NotebookError: If the parameters do not fit the notebook (before it runs), a cell fails, the
            kernel dies, or the limit is reached.
    """
    notebook_path, executed_path = Path(notebook_path), Path(executed_path)
    values = {k: str(v) if isinstance(v, Path) else v for k, v in (parameters or {}).items()}
    notebook = read_notebook(notebook_path)
    check_parameters(notebook, values, notebook_path)
    notebook.metadata["kernelspec"] = {
        "name": KERNEL_NAME,
        "display_name": "Python 3",
        "language": "python",
    }
    executed_path.parent.mkdir(parents=True, exist_ok=True)
    start_s = time.perf_counter()
    options = {"parameters": values, "cwd": working_dir, "progress_bar": show_progress}
    _execute(notebook, notebook_path, executed_path, timeout_s, options)
    duration_s = time.perf_counter() - start_s
    if html_path is not None:
        write_html(executed_path, html_path)
    return NotebookRun(executed_path, Path(html_path) if html_path else None, duration_s)


def read_notebook(path: str | Path) -> NotebookNode:
    """Read a notebook file.

    Raises:
        NotebookError: If the file is missing or is no notebook.
    """
    import nbformat

    try:
        return nbformat.read(path, as_version=4)
    except FileNotFoundError:
        raise NotebookError(
            f"There is no notebook {str(path)!r}.", field="notebook", value=str(path)
        ) from None
    except (nbformat.reader.NotJSONError, nbformat.ValidationError, AttributeError) as error:
        raise NotebookError(
            f"{str(path)!r} is not a notebook: {error}.", field="notebook", value=str(path)
        ) from error


def parameter_names(notebook: NotebookNode) -> list[str] | None:
    """Return the names that the tagged cell assigns, or None if no cell has the tag."""
    for cell in notebook.cells:
        if "parameters" in cell.metadata.get("tags", []):
            return [
                target.id
                for statement in ast.parse(cell.source).body
                for target in _targets(statement)
                if isinstance(target, ast.Name)
            ]
    return None


def check_parameters(notebook: NotebookNode, values: Mapping[str, Any], path: Path) -> None:
    """Refuse parameters that the notebook would ignore.

    Raises:
        NotebookError: If no cell is tagged ``parameters`` or a name is not set in it.
    """
    known = parameter_names(notebook)
    if known is None:
        raise NotebookError(
            f"{path.name} has no cell tagged 'parameters', so no value can be passed to it.",
            field="parameters",
            value=sorted(values),
            remedy="Tag the cell that sets the defaults (one cell, tag 'parameters').",
        )
    for name in values:
        if name not in known:
            raise NotebookError(
                f"{path.name} has no parameter {name!r}.{nearest(name, known)}",
                field=name,
                value=values[name],
                remedy=f"Its parameters: {', '.join(known)}.",
            )


def write_html(executed_path: str | Path, html_path: str | Path) -> None:
    """Render an executed notebook to one HTML file: images inside, nothing fetched when opened.

    The exporter's template asks other servers for scripts that set formulas and show widgets; these
    notebooks have neither, and a report must read the same on a machine without a network.
    """
    from nbconvert import HTMLExporter

    notebook = read_notebook(executed_path)
    exporter = HTMLExporter(exclude_input_prompt=True, exclude_output_prompt=True)
    title = _first_heading(notebook) or Path(executed_path).stem
    body, _ = exporter.from_notebook_node(notebook, resources={"metadata": {"name": title}})
    body = _FOREIGN_SCRIPT.sub("", body)
    html_path = Path(html_path)
    html_path.parent.mkdir(parents=True, exist_ok=True)
    temporary = html_path.with_suffix(".html.tmp")
    temporary.write_text(body, encoding="utf-8")
    temporary.replace(html_path)


def launch_kernel() -> None:
    """Be a Jupyter kernel that sends each printed line at once (called in the kernel's process).

    The kernel sends output a few times per second, so whatever a cell printed just before its
    process was killed would be lost, and with it the hint at what went wrong. Printing costs about
    1 ms a line more.
    """
    from ipykernel.iostream import OutStream
    from ipykernel.kernelapp import launch_new_instance

    # Nobody watches a progress bar here; what it redraws would pile up in the executed copy.
    os.environ.setdefault("TQDM_DISABLE", "1")
    warnings.filterwarnings("ignore", message="IProgress not found")
    write = OutStream.write

    def write_and_flush(stream: OutStream, text: str) -> int | None:
        count = write(stream, text)
        if "\n" in text:
            stream.flush()  # hands the text to the sending thread
            stream.flush()  # returns after that thread has given it to the socket
            time.sleep(_SEND_S)
        return count

    OutStream.write = write_and_flush  # type: ignore[method-assign]
    launch_new_instance()


def _targets(statement: ast.stmt) -> list[ast.expr]:
    if isinstance(statement, ast.Assign):
        return statement.targets
    return [statement.target] if isinstance(statement, ast.AnnAssign) else []


def _first_heading(notebook: NotebookNode) -> str | None:
    for cell in notebook.cells:
        if cell.cell_type == "markdown" and cell.source.startswith("# "):
            return cell.source.splitlines()[0].removeprefix("# ")
    return None


def _execute(
    notebook: NotebookNode,
    notebook_path: Path,
    executed_path: Path,
    timeout_s: float,
    options: dict[str, Any],
) -> None:
    import papermill
    from nbclient.exceptions import CellTimeoutError, DeadKernelError

    deadline_s = time.monotonic() + timeout_s
    # Sockets lie in a short temporary path: their names may have 107 characters at most.
    sockets = tempfile.TemporaryDirectory(prefix="infopt-")
    try:
        papermill.execute_notebook(
            notebook,
            executed_path,
            kernel_name=KERNEL_NAME,
            language="python",  # Papermill refuses a notebook in which it finds no language
            kernel_manager_class=_kernel_manager_class(Path(sockets.name)),
            timeout_func=lambda _cell: max(1, int(deadline_s - time.monotonic())),
            **options,
        )
    except papermill.PapermillExecutionError as error:
        raise _failed(
            notebook_path, executed_path, f"cell {error.exec_count}: {error.ename}: {error.evalue}"
        ) from error
    except DeadKernelError as error:
        reason = "the kernel died (killed, out of memory, or a crash in native code)"
        raise _failed(notebook_path, executed_path, reason) from error
    except CellTimeoutError as error:
        reason = f"it took longer than its limit of {timeout_s:g} s"
        raise _failed(notebook_path, executed_path, reason) from error
    finally:
        sockets.cleanup()


def _failed(notebook_path: Path, executed_path: Path, reason: str) -> NotebookError:
    return NotebookError(
        f"{notebook_path.name} failed: {reason}.",
        field="notebook",
        value=str(notebook_path),
        remedy=f"What it printed until then is in {executed_path}.",
    )


def _kernel_manager_class(folder: Path) -> type:
    from jupyter_client.kernelspec import KernelSpec
    from jupyter_client.manager import AsyncKernelManager

    argv = [sys.executable, "-c", _LAUNCH, "-f", "{connection_file}"]
    spec = KernelSpec(argv=argv, display_name="Python 3", language="python")

    class ThisInterpreter(AsyncKernelManager):
        """Starts ``sys.executable``, without asking which kernels are installed where.

        It talks over sockets in a private folder: TCP ports would be open to every user of the
        machine.
        """

        def __init__(self, **options: Any) -> None:
            connection_file = str(folder / "kernel.json")
            super().__init__(transport="ipc", connection_file=connection_file, **options)

        @property
        def kernel_spec(self) -> KernelSpec:
            return spec

    return ThisInterpreter
