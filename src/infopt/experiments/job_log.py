"""Logging of a pipeline job: everything to the rule's log file, progress to the console as well.

The scripts import what they call inside the block, so that a failing import is in the log, too.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from infopt.errors import InfoptError

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


@contextmanager
def job_log(path: str | Path) -> Iterator[None]:
    """Log to a file (new each time) and to standard error while the block runs.

    An error goes into the file with its traceback, then ends the process: an error of infopt with
    its message alone on the console, since it already says what to do.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    root = logging.getLogger()
    file = logging.FileHandler(path, mode="w", encoding="utf-8")
    file.setFormatter(logging.Formatter(_FORMAT))
    console = logging.StreamHandler(sys.stderr)
    console.setFormatter(logging.Formatter("%(message)s"))
    console.addFilter(lambda record: record.name.startswith("infopt"))
    level = root.level
    root.setLevel(logging.INFO)
    logging.captureWarnings(True)
    root.addHandler(file)
    root.addHandler(console)
    try:
        yield
    except InfoptError as error:
        file.emit(_as_record(error))
        sys.exit(f"{type(error).__name__}: {error}")
    except Exception as error:
        file.emit(_as_record(error))
        raise
    finally:
        logging.captureWarnings(False)
        root.setLevel(level)
        for handler in (file, console):
            root.removeHandler(handler)
        file.close()


def _as_record(error: Exception) -> logging.LogRecord:
    info = (type(error), error, error.__traceback__)
    return logging.LogRecord(
        "infopt.job", logging.ERROR, "", 0, "the job failed: %s", (error,), info
    )
