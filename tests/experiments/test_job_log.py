"""The log of a job: its errors are in it, and the console shows what a user needs."""

import logging
import warnings

import pytest

from infopt.errors import ConfigError
from infopt.experiments.job_log import job_log


def test_progress_goes_to_file_and_console_and_libraries_to_the_file_only(tmp_path, capsys):
    path = tmp_path / "logs" / "a.log"
    with job_log(path):
        logging.getLogger("infopt.x").info("candidate 1 of 3")
        logging.getLogger("some.library").info("chatter")
        warnings.warn("careful", stacklevel=1)
    text = path.read_text()
    assert "candidate 1 of 3" in text
    assert "chatter" in text
    assert "careful" in text
    console = capsys.readouterr().err
    assert "candidate 1 of 3" in console
    assert "chatter" not in console


def test_an_error_of_a_user_ends_with_its_message_and_leaves_the_traceback_in_the_log(tmp_path):
    with pytest.raises(SystemExit) as ended, job_log(tmp_path / "a.log"):
        raise ConfigError("The value is bad.", field="x", remedy="Take another.")
    assert ended.value.code == "ConfigError: The value is bad. Take another."
    assert "Traceback" in (tmp_path / "a.log").read_text()


def test_a_bug_is_raised_and_logged(tmp_path):
    with pytest.raises(ZeroDivisionError), job_log(tmp_path / "a.log"):
        _ = 1 / 0
    assert "ZeroDivisionError" in (tmp_path / "a.log").read_text()


def test_logging_is_as_before_afterwards(tmp_path):
    root = logging.getLogger()
    before = (root.level, list(root.handlers))
    with job_log(tmp_path / "a.log"):
        pass
    assert (root.level, list(root.handlers)) == before
