"""How a recommendation looks in a notebook."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from infopt.results.html import format_interval, format_value

if TYPE_CHECKING:
    from infopt.select.recommendation import Evidence, Recommendation


def recommendation_html(recommendation: Recommendation) -> str:
    """Return status, reason, configuration, evidence and what would change the choice, as HTML."""
    rows = "".join(_row(entry) for entry in recommendation.evidence)
    table = f"<table>{rows}</table>" if rows else ""
    title = recommendation.run or "nothing feasible"
    options = [f"{name}: {value}" for name, value in recommendation.changed_options().items()]
    return (
        f"<div><b>{html.escape(title)}</b> ({recommendation.status})"
        f"<p>{html.escape(recommendation.reason)}</p>"
        f"{_list('Configuration (what differs from the defaults)', options)}{table}"
        f"{_list('What would change it', [s.message for s in recommendation.sensitivity])}"
        f"{_list('Ties', [f'{t.run}: {t.reason}' for t in recommendation.ties])}"
        f"{_list('Notes', list(recommendation.notes))}"
        f"{_list('Not chosen', [f'{r.run}: {_join(r.reasons)}' for r in recommendation.rejected])}"
        "</div>"
    )


def format_evidence(entry: Evidence) -> str:
    """Return a measured number with its interval, without its unit."""
    if entry.low is not None and entry.high is not None:
        return format_interval(entry.value, entry.low, entry.high)
    # What is derived from constants is known to a factor, not to a per cent.
    return format_value(entry.value, 2 if entry.label.endswith("(derived)") else 3)


def _row(entry: Evidence) -> str:
    value = format_evidence(entry)
    return (
        f"<tr><th style='text-align:left'>{html.escape(entry.label)}</th>"
        f"<td style='text-align:left'>{value} {html.escape(entry.unit)}</td></tr>"
    )


def _list(title: str, lines: list[str]) -> str:
    if not lines:
        return ""
    items = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
    return f"<details open><summary>{title}</summary><ul>{items}</ul></details>"


def _join(reasons: tuple[str, ...]) -> str:
    return "; ".join(reasons)
