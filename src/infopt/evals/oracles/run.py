"""Makes the environment of an oracle, asks it, and writes down what it answered."""

from __future__ import annotations

import json
import os
import subprocess
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infopt.errors import ConfigError, DependencyError, MeasurementError, nearest
from infopt.evals.oracles.job import Job

ORACLES = ("llmcompressor", "kvpress")
"""Names of oracles; each has a script beside this module and a file of requirements."""

SCRIPTS = Path(__file__).parent
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


@dataclass(frozen=True, slots=True)
class Site:
    """Where oracles live.

    Attributes:
        environments: Folder with one virtual environment per oracle.
        requirements: Folder with one ``<name>.txt`` per oracle, exact versions.
        index: Further package index, for CPU wheels of torch; None for pip's own.
    """

    environments: Path
    requirements: Path
    index: str | None = None

    def python(self, name: str) -> Path:
        """Return the interpreter of an oracle, installed first if its requirements changed.

        Raises:
            ConfigError: There is no such oracle, or no file of requirements.
            DependencyError: pip failed; its output is in the log that the message names.
        """
        wanted, folder = self._wanted(name), self.environments / name
        python, stamp = folder / "bin" / "python", folder / "requirements.txt"
        if stamp.exists() and stamp.read_text("utf-8") == wanted:
            return python
        venv.create(folder, with_pip=True, clear=True)
        log = self.environments / f"{name}.install.log"
        command = [str(python), "-m", "pip", "install", "-r", str(self._file(name))]
        if _run([*command, *self._index_options()], log) != 0:
            raise DependencyError(
                f"The environment of the oracle {name!r} cannot be installed: {_last_line(log)}",
                field="oracle",
                value=name,
                remedy=f"pip's output is in {log}.",
            )
        stamp.write_text(wanted, "utf-8")
        return python

    def _index_options(self) -> list[str]:
        return [] if self.index is None else ["--extra-index-url", self.index]

    def _file(self, name: str) -> Path:
        return self.requirements / f"{name}.txt"

    def _wanted(self, name: str) -> str:
        if name not in ORACLES:
            raise ConfigError(
                f"There is no oracle {name!r}.{nearest(name, ORACLES)}",
                field="oracle",
                value=name,
                remedy=f"Known: {', '.join(ORACLES)}.",
            )
        try:
            return self._file(name).read_text("utf-8")
        except FileNotFoundError:
            raise ConfigError(
                f"The oracle {name!r} has no file of requirements {self._file(name)}.",
                field="requirements",
                value=str(self.requirements),
                remedy="Run from the root of the repository, or name the folder.",
            ) from None


def ask(name: str, job: Job, python: Path, folder: Path) -> dict[str, Any]:
    """Run an oracle and return what went in and what came out, as plain data.

    Args:
        name: Which.
        job: Model and text.
        python: Interpreter of its environment.
        folder: For the job, the answer and the log.

    Raises:
        MeasurementError: It failed; the message ends with its last words.
    """
    job_file, answer, log = (folder / f"{name}.{end}" for end in ("job.npz", "json", "log"))
    job.save(job_file)
    answer.unlink(missing_ok=True)
    files = (SCRIPTS / "protocol.py", SCRIPTS / f"oracle_{name}.py", job_file, answer)
    code = _run([str(python), *map(str, files)], log)
    if code != 0:
        raise MeasurementError(
            f"The oracle {name!r} ended with code {code}: {_last_line(log)}",
            field="oracle",
            value=name,
            remedy=f"Its output is in {log}.",
        )
    return {"oracle": name, **job.describe(), **json.loads(answer.read_text("utf-8"))}


def _run(command: Sequence[str], log: Path) -> int:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    with log.open("w") as file:
        return subprocess.run(
            command,
            stdout=file,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=environment | _OFFLINE,
            check=False,
        ).returncode


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "no output"
