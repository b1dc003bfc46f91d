"""``infopt generate``: text from a prompt, or a conversation, on the terminal."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infopt.cli.console import note, output, print_error, print_json
from infopt.cli.engine import ENGINE_OPTIONS, ConfigOption, ModelOption, build_config
from infopt.cli.models import RegistryOption, load_registry
from infopt.cli.options import Group, add_options
from infopt.cli.streaming import run_request, summary, write_growing_text
from infopt.errors import ConfigError, InfoptError
from infopt.outputs import RequestOutput
from infopt.sampling_params import SamplingParams

if TYPE_CHECKING:
    from infopt.llm import LLM

SAMPLING_OPTIONS = Group(
    SamplingParams,
    title="Sampling",
    skip=("structured_outputs", "kv_eviction"),  # the latter is an option of the engine
    defaults={"max_tokens": 256},
)


@add_options(sampling=SAMPLING_OPTIONS, engine=ENGINE_OPTIONS)
def generate(
    *,
    prompt: Annotated[
        str | None,
        typer.Argument(help="The prompt; '-' reads it from stdin.", show_default=False),
    ] = None,
    model: ModelOption = None,
    config: ConfigOption = None,
    registry: RegistryOption = None,
    chat: Annotated[
        bool,
        typer.Option(
            "--chat", help="Use the chat template; without a prompt, hold a conversation."
        ),
    ] = False,
    system: Annotated[
        str | None, typer.Option("--system", help="System message for --chat.", show_default=False)
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the whole output as JSON when it is complete.")
    ] = False,
    sampling: dict[str, Any],
    engine: dict[str, Any],
) -> None:
    """Generate text; it appears as it is made, timings follow on stderr."""
    params = SamplingParams.from_dict(sampling)
    engine_config = build_config(model, config, engine)
    _check_combination(prompt, chat, system, as_json, params)
    load_registry(registry)
    text = sys.stdin.read() if prompt == "-" else prompt

    from infopt.llm import LLM

    with LLM(config=engine_config) as llm:
        if text is None:
            _converse(llm, system, params)
        else:
            _answer(llm, _prompt_of(llm, text, chat, system), params, as_json)


def _check_combination(
    prompt: str | None, chat: bool, system: str | None, as_json: bool, params: SamplingParams
) -> None:
    if prompt is None and not chat:
        raise ConfigError(
            "There is no prompt.",
            field="prompt",
            remedy='Give one: infopt generate "Once upon a time", or add --chat to talk.',
        )
    if system is not None and not chat:
        raise ConfigError(
            f"--system {system!r} needs --chat.", field="system", value=system, remedy="Add --chat."
        )
    wants_logprobs = params.logprobs is not None or params.prompt_logprobs is not None
    if wants_logprobs and not as_json:
        raise ConfigError(
            "Log-probabilities are shown in JSON only.", field="logprobs", remedy="Add --json."
        )
    if prompt is None and (as_json or params.n > 1):
        raise ConfigError(
            "A conversation has one answer per turn and no JSON form.",
            field="chat",
            remedy="Give a prompt, or leave out --json and --n.",
        )


def _prompt_of(llm: LLM, text: str, chat: bool, system: str | None) -> str | list[int]:
    if not chat:
        return text
    return llm.tokenizer.apply_chat_template(
        [*_system_message(system), {"role": "user", "content": text}]
    )


def _system_message(system: str | None) -> list[dict[str, str]]:
    return [] if system is None else [{"role": "system", "content": system}]


def _answer(llm: LLM, prompt: str | list[int], params: SamplingParams, as_json: bool) -> None:
    """Answer one prompt: streamed when there is one text to stream."""
    outputs = run_request(llm.engine, prompt, params)
    if params.n == 1 and params.detokenize and not as_json:
        last = write_growing_text(outputs)
    else:
        *_, last = outputs
        print_json(plain(last)) if as_json else _print_completions(last, params)
    note(summary(last))


def _print_completions(last: RequestOutput, params: SamplingParams) -> None:
    console = output()
    for completion in last.outputs:
        if params.n > 1:
            console.print(f"[bold]-- {completion.index} --[/]")
        typer.echo(completion.text if params.detokenize else str(completion.token_ids))


def _converse(llm: LLM, system: str | None, params: SamplingParams) -> None:
    """Alternate between the user's lines and answers until the input ends."""
    history = _system_message(system)
    note("Ctrl-D ends, /reset starts over.")
    while (line := _read_line()) is not None:
        if line == "/reset":
            history = _system_message(system)
        elif line:
            history.append({"role": "user", "content": line})
            history += _turn(llm, history, params)


def _turn(llm: LLM, history: list[dict[str, str]], params: SamplingParams) -> list[dict[str, str]]:
    """Answer the last message; if that fails, say why and take the message back."""
    try:
        prompt = llm.tokenizer.apply_chat_template(history)
        last = write_growing_text(run_request(llm.engine, prompt, params))
    except InfoptError as error:
        print_error(error)
        history.pop()
        return []
    note(summary(last))
    return [{"role": "assistant", "content": last.outputs[0].text}]


def _read_line() -> str | None:
    try:
        return input("> " if sys.stdin.isatty() else "").strip()
    except EOFError:
        return None


def plain(value: Any) -> Any:
    """Return an output as JSON data: dataclasses as objects, bytes as lists of numbers."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | bytes):
        return [plain(v) for v in value]
    return value
