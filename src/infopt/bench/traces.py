"""Readers of public serving traces, and scaling to the size of a model and a machine.

Two formats are read. Azure's LLM inference trace is CSV with ``TIMESTAMP``, ``ContextTokens`` and
``GeneratedTokens``. Mooncake's is JSON lines with ``timestamp`` in ms, ``input_length``,
``output_length`` and ``hash_ids``: equal ids are equal blocks of 512 prompt tokens, so the trace
says which prompts share a prefix without saying what they hold.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, NoReturn

from infopt.bench.options import check_count, check_positive
from infopt.errors import WorkloadError

logger = logging.getLogger(__name__)

TRACE_BLOCK_TOKENS = 512
"""Prompt tokens per Mooncake hash id."""

_AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_MOONCAKE_KEYS = ("timestamp", "input_length", "output_length", "hash_ids")

TooLong = Literal["error", "clip", "drop"]


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One line of a trace.

    Attributes:
        arrival_s: Seconds after the first request.
        num_prompt_tokens: Prompt length.
        num_output_tokens: Output length.
        block_ids: One id per block of ``block_tokens`` prompt tokens (empty: contents unknown).
        block_tokens: Tokens per block.
    """

    arrival_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    block_ids: tuple[int, ...] = ()
    block_tokens: int = TRACE_BLOCK_TOKENS


def read_trace(path: str | Path, *, limit: int | None = None) -> list[TraceRequest]:
    """Read a trace by its file type: ``.csv`` is Azure's format, ``.jsonl`` Mooncake's.

    Args:
        path: The file.
        limit: Read only so many requests.

    Raises:
        WorkloadError: Unknown file type, missing file, or a malformed line (with its number).
    """
    readers: dict[str, Callable[..., list[TraceRequest]]] = {
        ".csv": read_azure_csv,
        ".jsonl": read_mooncake_jsonl,
    }
    suffix = Path(path).suffix
    if suffix not in readers:
        raise WorkloadError(
            f"Cannot tell the format of trace {str(path)!r} from its ending {suffix!r}.",
            field="path",
            value=str(path),
            remedy="Use .csv (Azure columns) or .jsonl (Mooncake keys).",
        )
    return readers[suffix](path, limit=limit)


def read_azure_csv(path: str | Path, *, limit: int | None = None) -> list[TraceRequest]:
    """Read Azure's CSV; time stamps carry seven digits of fraction, arrivals start at 0."""
    lines = _numbered_lines(path)
    header = next(lines, (1, ""))[1].strip().split(",")
    missing = [c for c in _AZURE_COLUMNS if c not in header]
    if missing:
        _malformed(path, 1, f"no column {missing[0]!r} in header {','.join(header)!r}")
    requests: list[TraceRequest] = []
    start: datetime | None = None
    for number, line in lines:
        if limit is not None and len(requests) >= limit:
            break
        fields = next(csv.reader([line]))
        if len(fields) != len(header):
            _malformed(path, number, f"{len(fields)} fields instead of {len(header)}")
        row = dict(zip(header, fields, strict=True))
        moment = _timestamp(path, number, row["TIMESTAMP"])
        start = start or moment
        requests.append(
            TraceRequest(
                arrival_s=(moment - start).total_seconds(),
                num_prompt_tokens=_count(path, number, "ContextTokens", row["ContextTokens"]),
                num_output_tokens=_count(path, number, "GeneratedTokens", row["GeneratedTokens"]),
            )
        )
    return _in_order(path, requests)


def read_mooncake_jsonl(path: str | Path, *, limit: int | None = None) -> list[TraceRequest]:
    """Read Mooncake's JSON lines; arrivals are counted from the first request."""
    requests: list[TraceRequest] = []
    for number, line in _numbered_lines(path):
        if limit is not None and len(requests) >= limit:
            break
        requests.append(_mooncake_request(path, number, line))
    start = requests[0].arrival_s if requests else 0.0
    shifted = [dataclasses.replace(r, arrival_s=r.arrival_s - start) for r in requests]
    return _in_order(path, shifted)


def scale_trace(
    trace: list[TraceRequest],
    *,
    time_scale: float = 1.0,
    length_scale: float = 1.0,
    output_scale: float | None = None,
    max_total_tokens: int | None = None,
    too_long: TooLong = "error",
) -> list[TraceRequest]:
    """Fit a trace to a model and a machine.

    Args:
        trace: Requests in time order.
        time_scale: Factor on all gaps: 2 spreads the trace over twice the time.
        length_scale: Factor on prompt and block lengths (at least one token stays). Blocks shrink
            with the prompts, so the shared share of a prompt is preserved.
        output_scale: Factor on output lengths; default is ``length_scale``.
        max_total_tokens: Most prompt plus output tokens a request may have after scaling.
        too_long: What to do with longer ones: refuse the trace, cut the end of the prompt, or
            leave the request out.

    Raises:
        WorkloadError: A bad factor, or a request that is too long under ``too_long="error"``.
    """
    check_positive("time_scale", time_scale)
    check_positive("length_scale", length_scale)
    if too_long not in ("error", "clip", "drop"):
        raise WorkloadError(
            f"too_long={too_long!r} is not a choice.",
            field="too_long",
            value=too_long,
            remedy="Choose one of: error, clip, drop.",
        )
    output_scale = check_positive(
        "output_scale", length_scale if output_scale is None else output_scale
    )
    scaled = [_scale(r, time_scale, length_scale, output_scale) for r in trace]
    if max_total_tokens is None:
        return scaled
    check_count("max_total_tokens", max_total_tokens, minimum=2)
    fitted = [_fit(i, r, max_total_tokens, too_long) for i, r in enumerate(scaled)]
    num_changed = sum(a is not b for a, b in zip(scaled, fitted, strict=True))
    if num_changed:
        logger.warning(
            "%d of %d trace requests had more than %d tokens (too_long=%s)",
            num_changed,
            len(trace),
            max_total_tokens,
            too_long,
        )
    return [r for r in fitted if r is not None]


def _scale(
    request: TraceRequest, time_scale: float, length_scale: float, output_scale: float
) -> TraceRequest:
    block = max(round(request.block_tokens * length_scale), 1)
    prompt = max(round(request.num_prompt_tokens * length_scale), 1)
    if request.block_ids:
        # Rounding the block down must not leave tokens that no block covers.
        prompt = min(prompt, block * len(request.block_ids))
    return TraceRequest(
        arrival_s=request.arrival_s * time_scale,
        num_prompt_tokens=prompt,
        num_output_tokens=max(round(request.num_output_tokens * output_scale), 1),
        block_ids=request.block_ids,
        block_tokens=block,
    )


def _fit(index: int, request: TraceRequest, limit: int, too_long: TooLong) -> TraceRequest | None:
    total = request.num_prompt_tokens + request.num_output_tokens
    if total <= limit:
        return request
    if too_long == "drop":
        return None
    if too_long == "clip":
        # An answer keeps at least half of the limit, so that neither side vanishes.
        output = min(request.num_output_tokens, max(limit // 2, limit - request.num_prompt_tokens))
        prompt = min(request.num_prompt_tokens, limit - output)
        return dataclasses.replace(request, num_prompt_tokens=prompt, num_output_tokens=output)
    raise WorkloadError(
        f"Request {index} of the trace has {total} tokens, more than max_total_tokens={limit}.",
        field="max_total_tokens",
        value=limit,
        remedy="Lower length_scale, or set too_long to clip or drop.",
    )


def _numbered_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, text) of the lines that are not blank."""
    try:
        with Path(path).open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, line.rstrip("\r\n")
    except OSError as error:
        raise WorkloadError(
            f"Cannot read trace {str(path)!r}: {error.strerror}.", field="path", value=str(path)
        ) from error
    except UnicodeDecodeError as error:
        raise WorkloadError(
            f"Trace {str(path)!r} is not UTF-8 text.", field="path", value=str(path)
        ) from error


def _mooncake_request(path: str | Path, number: int, line: str) -> TraceRequest:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        _malformed(path, number, f"not JSON ({error.msg} at column {error.colno})")
    if not isinstance(row, dict):
        _malformed(path, number, f"not a JSON object: {line[:60]!r}")
    for key in _MOONCAKE_KEYS:
        if key not in row:
            _malformed(path, number, f"no {key!r}")
    blocks = row["hash_ids"]
    if not isinstance(blocks, list) or not all(type(b) is int and b >= 0 for b in blocks):
        _malformed(path, number, "hash_ids must be a list of whole numbers >= 0")
    prompt = _count(path, number, "input_length", row["input_length"])
    num_blocks = -(-prompt // TRACE_BLOCK_TOKENS)
    if blocks and len(blocks) != num_blocks:
        _malformed(
            path,
            number,
            f"{len(blocks)} hash_ids for {prompt} tokens, which are {num_blocks} blocks",
        )
    return TraceRequest(
        arrival_s=_count(path, number, "timestamp", row["timestamp"], minimum=0) / 1000,
        num_prompt_tokens=prompt,
        num_output_tokens=_count(path, number, "output_length", row["output_length"]),
        block_ids=tuple(blocks),
    )


def _timestamp(path: str | Path, number: int, text: str) -> datetime:
    whole, _, fraction = text.strip().partition(".")
    try:
        # Azure writes 100 ns; datetime holds microseconds.
        return datetime.fromisoformat(f"{whole}.{fraction[:6]:0<6}")
    except ValueError:
        _malformed(path, number, f"TIMESTAMP {text!r} is not a date and time")


def _count(path: str | Path, number: int, name: str, value: Any, minimum: int = 1) -> int:
    is_whole = type(value) is int or (isinstance(value, str) and value.strip().isdecimal())
    if not is_whole or int(value) < minimum:
        _malformed(path, number, f"{name} must be a whole number >= {minimum}, got {value!r}")
    return int(value)


def _in_order(path: str | Path, requests: list[TraceRequest]) -> list[TraceRequest]:
    if not requests:
        raise WorkloadError(
            f"Trace {str(path)!r} holds no requests.", field="path", value=str(path)
        )
    for index in range(1, len(requests)):
        if requests[index].arrival_s < requests[index - 1].arrival_s:
            raise WorkloadError(
                f"Trace {str(path)!r} goes back in time at request {index} (counted from 0).",
                field="path",
                value=str(path),
                remedy="Sort the trace by time.",
            )
    return requests


def _malformed(path: str | Path, number: int, why: str) -> NoReturn:
    raise WorkloadError(f"{path}, line {number}: {why}.", field="path", value=f"{path}:{number}")
