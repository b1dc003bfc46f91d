"""Text on the terminal while it is being made."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from infopt.outputs import RequestOutput
from infopt.sampling_params import SamplingParams

if TYPE_CHECKING:
    from infopt.engine.engine import Engine

REQUEST_ID = "cli"


def run_request(
    engine: Engine, prompt: str | list[int], params: SamplingParams
) -> Iterator[RequestOutput]:
    """Yield the growing output of one request; leaving early (Ctrl-C) aborts it."""
    engine.add_request(REQUEST_ID, prompt, params)
    try:
        while engine.has_unfinished:
            yield from engine.step()
    finally:
        engine.abort(REQUEST_ID)


def write_growing_text(outputs: Iterable[RequestOutput]) -> RequestOutput:
    """Write the new part of each text to stdout at once; return the last output."""
    num_written, last = 0, None
    for last in outputs:
        text = last.outputs[0].text
        sys.stdout.write(text[num_written:])
        sys.stdout.flush()
        num_written = len(text)
    sys.stdout.write("\n")
    assert last is not None, "the engine ended without an output"
    return last


def summary(output: RequestOutput) -> str:
    """Return one line on how long an output took."""
    num_tokens = sum(len(completion.token_ids) for completion in output.outputs)
    reasons = ", ".join(str(completion.finish_reason) for completion in output.outputs)
    parts = [f"{len(output.prompt_token_ids)} prompt tokens"]
    if output.num_cached_tokens:
        parts[0] += f" ({output.num_cached_tokens} cached)"
    parts.append(f"{num_tokens} generated ({reasons})")
    metrics = output.metrics
    if metrics.ttft_s is not None:
        parts.append(f"first token after {metrics.ttft_s:.2f} s")
    if metrics.tpot_s:
        parts.append(f"{1 / metrics.tpot_s:.1f} tokens/s after it")
    return ", ".join(parts)
