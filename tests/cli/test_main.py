"""Version, errors and start-up of the command line."""

from __future__ import annotations

from typing import Any

import pytest

import infopt
from infopt.errors import InfoptError


def test_version(run_cli: Any) -> None:
    assert run_cli("--version").output.strip() == f"infopt {infopt.__version__}"


def test_users_mistake_is_one_message_with_remedy(run_cli: Any) -> None:
    result = run_cli("generate", "x", "--model", "smollm2-135m-instruct-q41", ok=False)
    assert result.stdout == ""
    assert "Error: There is no model 'smollm2-135m-instruct-q41'" in result.stderr
    assert "Did you mean 'smollm2-135m-instruct-q4_1'?" in result.stderr
    assert result.stderr.count("Error:") == 1


def test_debug_shows_the_traceback(run_cli: Any) -> None:
    from typer.testing import CliRunner

    from infopt.cli import app

    args = ["generate", "x", "--max-num-seqs", "0"]
    result = CliRunner().invoke(app, ["--debug", *args])
    assert isinstance(result.exception, InfoptError)
    assert CliRunner().invoke(app, args).exit_code == 2


def test_bug_is_not_disguised_as_a_users_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    import infopt.cli.models
    from infopt.cli import app

    def broken(_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(infopt.cli.models, "load_registry", broken)
    result = CliRunner().invoke(app, ["models"])
    assert isinstance(result.exception, ZeroDivisionError)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("generate",), ("no prompt", "--chat")),
        (("generate", "x", "--system", "be kind"), ("--system", "--chat")),
        (("generate", "x", "--logprobs", "2"), ("JSON", "--json")),
        (("generate", "--chat", "--n", "2"), ("conversation",)),
        (("generate", "x", "--temperature", "-1"), ("temperature", "-1")),
        (("generate", "x", "--scheduling", "statik"), ("scheduling", "statik", "static")),
        (("generate", "x", "--logit-bias", "5"), ("--logit-bias", "'5'")),
        (("generate", "x", "--config", "absent.yaml"), ("absent.yaml",)),
        (("bench", "--arm", "a"), ("--arm", "NAME=KEY=VALUE")),
        (("bench", "--arm", "a=", "--arm", "a="), ("'a'",)),
        (("bench", "--arm", "a=shceduling=static"), ("shceduling", "scheduling")),
        (("bench", "--slo", "chatt"), ("chatt", "chat")),
        (("bench", "--slo", "ttft=1"), ("ttft", "ttft_s")),
        (("recommend", "absent.yaml"), ("absent.yaml", "make run")),
        (("models", "--registry", "absent.yaml"), ("absent.yaml",)),
        (("models", "fetch", "absent"), ("absent",)),
    ],
)
def test_messages_name_the_fault_and_what_to_do(
    run_cli: Any, args: tuple[str, ...], words: tuple[str, ...]
) -> None:
    output = run_cli(*args, ok=False).output
    for word in words:
        assert word in output
