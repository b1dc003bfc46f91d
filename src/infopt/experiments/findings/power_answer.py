"""Plots, tables and the answer of the notebook on power and cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infopt.experiments.costs import cost_section
from infopt.experiments.findings.missing import Remark, not_measured
from infopt.experiments.findings.power import (
    CANDIDATE,
    COLD_START,
    REPLICAS,
    THREADS,
    PowerStory,
    joules_text,
    order_sentence,
)
from infopt.experiments.findings.power_cost import (
    elsewhere_sentence,
    energy_sentence,
    money_sentence,
)
from infopt.experiments.findings.tables import full_text, shown_ratio
from infopt.plotting import keep_warm_curves, request_energy, size_tradeoff
from infopt.plotting.data import floats
from infopt.results.html import format_value
from infopt.select.rows import Row, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas.io.formats.style import Styler

_RATIO = "comparison.output_tokens_per_s"


def size_axes(story: PowerStory, name: str) -> Axes | Remark:
    """Return energy over throughput of a slice of instances."""
    rows = [r for r in story.rows(name) if number(r, "energy.j_per_token") is not None]
    if not rows:
        return _skipped(story, name)
    least = min(rows, key=lambda row: number(row, "energy.j_per_token") or 0.0)
    fastest = max(rows, key=lambda row: number(row, "throughput.output_tokens_per_s") or 0.0)
    title = f"{least[CANDIDATE]} takes the least energy per token, {fastest[CANDIDATE]} is fastest"
    if least is fastest:
        title = f"{least[CANDIDATE]} is fastest and takes the least energy per token"
    return size_tradeoff(story.data.rows(name), title=title)


def sizes_table(story: PowerStory) -> Styler | Remark:
    """Return every instance: speed, latency, energy and price."""
    import pandas as pd

    rows = [*story.rows(THREADS), *story.rows(REPLICAS)]
    if not rows:
        return _skipped(story, THREADS)
    return full_text(pd.DataFrame([_size_entry(story, row) for row in rows]).set_index("instances"))


def _size_entry(story: PowerStory, row: Row) -> dict[str, Any]:
    cost = cost_section(row, story.prices.machine)
    per_million = cost["per_million_output_tokens"]
    return {
        "instances": row[CANDIDATE],
        "share of the machine": f"{number(row, 'extra.machine_share') or 1:.0%}",
        "tokens/s": format_value(number(row, "throughput.output_tokens_per_s") or 0.0, 3),
        "against the whole machine": _speed(row),
        "TTFT p50 (ms)": _milliseconds(row, "latency.ttft_s.p50"),
        "TPOT p50 (ms)": _milliseconds(row, "latency.tpot_s.p50"),
        "energy per token": joules_text(row, "j_per_token", "J"),
        "per million tokens": cost["reason"]
        if per_million is None
        else f"{format_value(per_million, 3)} {cost['currency']}",
    }


def _speed(row: Row) -> str:
    if number(row, f"{_RATIO}.median") is None:
        return "reference"
    return f"{shown_ratio(row, _RATIO)} {row[f'{_RATIO}.verdict']}"


def _milliseconds(row: Row, column: str) -> str:
    value = number(row, column)
    return "-" if value is None else f"{1e3 * value:.0f}"


def size_sentences(story: PowerStory) -> str:
    """Return what was chosen, what replicas do, and the order by energy, as a list."""
    lines = []
    if story.size is not None:
        reason = str(story.data.chosen[THREADS]["reason"]).replace(f"power/{THREADS}.", "")
        lines.append(f"**Size:** `{story.size[CANDIDATE]}`. {reason}")
        lines.append(f"**Energy of sizes:** {order_sentence(story.rows(THREADS))}")
    divided = [row for row in story.rows(REPLICAS) if number(row, f"{_RATIO}.median") is not None]
    lines += [
        f"**Replicas:** `{row[CANDIDATE]}` has {shown_ratio(row, _RATIO)} the throughput of one "
        f"instance ({row[f'{_RATIO}.verdict']})."
        for row in divided
    ]
    if divided:
        lines.append(f"**Energy of replicas:** {order_sentence(story.rows(REPLICAS))}")
    for name in (THREADS, REPLICAS):
        if not story.rows(name):
            lines.append(_skipped(story, name).text)
    return "\n".join(f"- {line}" for line in lines)


def request_axes(story: PowerStory) -> Axes | Remark:
    """Return the attributed energy of requests by their lengths; in words where all are equal."""
    requests = story.requests
    if requests.empty:
        return not_measured("The energy of single requests")
    lengths = requests[["prompt_tokens", "output_tokens"]].drop_duplicates()
    if len(lengths) == 1:
        return Remark(_equal_requests(story))
    return request_energy(requests, title=_request_title(story), is_derived=story.is_derived)


def _request_title(story: PowerStory) -> str:
    prefill, decode = (floats(story.requests, n).sum() for n in ("prefill_j", "decode_j"))
    return f"Prompts take {prefill / (prefill + decode):.0%} of the requests' energy"


def _equal_requests(story: PowerStory) -> str:
    requests = story.requests
    tokens = [f"{floats(requests, name)[0]:.0f}" for name in ("prompt_tokens", "output_tokens")]
    joules = [format_value(floats(requests, n).mean(), 2) for n in ("prefill_j", "decode_j")]
    word = "derived" if story.is_derived else "measured"
    return (
        f"All requests have {' + '.join(tokens)} tokens. One takes {joules[0]} J for its prompt "
        f"and {joules[1]} J for its output ({word}). {_request_title(story)}."
    )


def requests_sentence(story: PowerStory) -> str:
    """Return what a prompt token and an output token take, and what belongs to no request."""
    row = story.size
    values = [
        None if row is None else number(row, f"energy.{name}")
        for name in ("prefill_j_per_prompt_token", "decode_j_per_token", "idle_j", "joules")
    ]
    if row is None or None in values:
        return "This run does not tell the energy of prompts and outputs apart."
    prefill, decode, idle, total = (float(v or 0.0) for v in values)
    word = "derived" if story.is_derived else "measured"
    return (
        f"A prompt token takes {format_value(prefill, 2)} J, an output token "
        f"{format_value(decode, 2)} J, {decode / prefill:.1f} times as much ({word}; mixed steps "
        f"divided by {row['energy.split']}). {idle / total:.1%} of the energy belongs to no "
        "request."
    )


def start_axes(story: PowerStory) -> Axes | Remark:
    """Return the energy of starting and of waiting over the rate of requests."""
    import pandas as pd

    rows = [r for r in story.rows(COLD_START) if number(r, "extra.hold_s") is not None]
    if not rows:
        return _skipped(story, COLD_START)
    starts = pd.DataFrame(
        {
            "format": [row[CANDIDATE] for row in rows],
            "start_j": [number(row, "extra.start_j") for row in rows],
            "warm_watts": [number(row, "extra.warm_watts") for row in rows],
        }
    )
    first = min(rows, key=lambda row: number(row, "extra.cold_start_s") or 0.0)
    title = (
        f"{first[CANDIDATE]} starts fastest, in {first['extra.cold_start_s']:.1f} s; keeping it "
        f"warm pays from a request every {first['extra.hold_s']:.0f} s"
    )
    return keep_warm_curves(starts, title=title, is_derived=story.is_derived)


def starts_table(story: PowerStory) -> Styler | Remark:
    """Return every weight format: start, keeping warm, and the break-even."""
    import pandas as pd

    rows = [_start_entry(row) for row in story.rows(COLD_START)]
    if not rows:
        return _skipped(story, COLD_START)
    return full_text(pd.DataFrame(rows).set_index("format"))


def _start_entry(row: Row) -> dict[str, Any]:
    return {
        "format": row[CANDIDATE],
        "start (s)": f"{row['extra.cold_start_s']:.2f}",
        "loaded after (s)": f"{row['extra.ready_s']:.2f}",
        "first time (s)": f"{row['extra.first_start_s']:.2f}",
        "weights (MiB)": f"{row['extra.weights_bytes'] / 2**20:.0f}",
        "start (J)": _range(row, "start_j"),
        "keeping warm (W)": _range(row, "warm_watts"),
        "stop after idle (s)": _range(row, "hold_s"),
        "keep warm from (requests/h)": _range(row, "break_even_per_s", 3600.0),
    }


def _range(row: Row, name: str, scale: float = 1.0) -> str:
    value = number(row, f"extra.{name}")
    if value is None:
        return "-"
    ends = [number(row, f"extra.{name}_{end}") for end in ("low", "high")]
    text = format_value(value * scale, 3)
    known = [format_value(end * scale, 2) for end in sorted(e for e in ends if e is not None)]
    return f"{text} ({known[0]} to {known[1]})" if len(known) == 2 else text


def start_sentence(story: PowerStory) -> str:
    """Return whether to keep a server warm."""
    rows = [r for r in story.rows(COLD_START) if number(r, "extra.cold_start_s") is not None]
    if not rows:
        return _skipped(story, COLD_START).text
    row = min(rows, key=lambda r: number(r, "extra.cold_start_s") or 0.0)
    text = (
        f"A start takes {row['extra.cold_start_s']:.1f} s with `{row[CANDIDATE]}`: what the first "
        "request waits."
    )
    hold = number(row, "extra.hold_s")
    if hold is None:
        return f"{text} Its energy is not known."
    word = ", derived" if story.is_derived else ""
    return (
        f"{text} By energy{word}, **keep it warm** where requests come less than {hold:.0f} s "
        f"apart, **start on demand** below {3600 / hold:.0f} an hour; where traffic is not known, "
        f"stop after {hold:.0f} s without a request, which takes at most twice the better of both. "
        "A machine paid by the second is held while it starts, too: there the break-even gap is "
        f"the start itself, {row['extra.cold_start_s']:.1f} s."
    )


def _skipped(story: PowerStory, name: str) -> Remark:
    entry = story.data.chosen.get(name)
    if entry is None or entry["status"] != "skipped":
        return not_measured(f"`{name}`")
    return Remark(f"*`{name}` was skipped: {entry['reason']}*")


def answer(story: PowerStory) -> str:
    """Return the conclusion as Markdown."""
    lines = [
        energy_sentence(story),
        money_sentence(story),
        elsewhere_sentence(story),
        f"**Warm or on demand:** {start_sentence(story)}",
    ]
    text = "\n".join([*(f"- {line}" for line in lines), size_sentences(story)])
    if story.data.is_miniature:
        text += "\n\nThese are first impressions of a miniature; `make run` measures properly."
    return text


def check(story: PowerStory) -> None:
    """Assert what the notebook says.

    Raises:
        AssertionError: The run contradicts it.
    """
    for row in [*story.rows(THREADS), *story.rows(REPLICAS)]:
        low, high = (number(row, f"energy.j_per_token_{end}") for end in ("low", "high"))
        value = number(row, "energy.j_per_token")
        if low is not None and high is not None and value is not None:
            assert low <= value <= high
    requests = story.requests
    row = story.size
    total = None if row is None else number(row, "energy.joules")
    if len(requests) and total is not None:
        assert floats(requests, "prefill_j").sum() + floats(requests, "decode_j").sum() <= total
    for row in story.rows(COLD_START):
        hold, rate = number(row, "extra.hold_s"), number(row, "extra.break_even_per_s")
        assert hold is None or rate is None or abs(hold * rate - 1) < 1e-9
