"""What compressing keys and values loses: hidden numbers, and how a long text goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infopt.experiments.findings.kv_cache import COMPRESSION, KVStory
from infopt.experiments.findings.missing import Remark, not_measured
from infopt.experiments.findings.story import CANDIDATE
from infopt.experiments.findings.tables import full_text
from infopt.plotting import kept_quality
from infopt.plotting.data import floats
from infopt.results.html import format_interval, format_value
from infopt.results.metrics import Metric, metric_of
from infopt.select.rows import Row, number, rows_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from pandas.io.formats.style import Styler

KL = "quality.kl_mean"
PASSKEY, DIALOGUE = "quality.tasks.passkey", "quality.tasks.dialogue"
_LINEAR_KL = 0.01
SIGNIFICANT = 0.05
"""Largest p-value of the paired test at which a loss counts as one."""


def has_quality(story: KVStory) -> bool:
    """Whether this run measured quality behind long prompts."""
    return f"{PASSKEY}.score" in story.rows(COMPRESSION).columns


def passkey_axes(story: KVStory) -> Axes | Remark:
    """Draw the share of hidden numbers that are found, over the bytes that are kept."""
    if not has_quality(story):
        return not_measured("Retrieval")
    base = story.reference_row(COMPRESSION)
    points = _points(story, f"{PASSKEY}.score", f"{PASSKEY}.low", f"{PASSKEY}.high")
    points["differs"] = [loses_passkeys(row) for row in rows_of(story.rows(COMPRESSION))]
    return kept_quality(
        points,
        Metric("passkey", "Hidden numbers found", "%", "higher", 100),
        lines={story.reference: float(base[f"{PASSKEY}.score"])},
        reference=story.reference,
        title=_passkey_finding(story),
    )


def kl_axes(story: KVStory) -> Axes | Remark:
    """Draw the divergence of decoding behind a long prompt over the bytes that are kept."""
    if not has_quality(story):
        return not_measured("Fidelity")
    ends = [f"quality.fidelity_details.kl_{end}" for end in ("low", "high")]
    points = _points(story, KL, *ends)
    high = float(story.reference_row(COMPRESSION)[ends[1]])
    points["differs"] = [low > high for low in points["low"]]
    return kept_quality(
        points,
        metric_of(KL),
        lines=story.limits,
        linear_below=_LINEAR_KL,
        reference=story.reference,
        title=_kl_finding(story),
    )


def depth_table(story: KVStory) -> pd.DataFrame | Remark:
    """Return the share of numbers found by the length of the prompt, and by depth."""
    import pandas as pd

    if not has_quality(story):
        return not_measured("Retrieval")
    found: dict[str, dict[str, str]] = {}
    for row in rows_of(story.rows(COMPRESSION)):
        items = story.curve(COMPRESSION, str(row[CANDIDATE]), "passkey.")
        cells = {}
        for column, form in (("length", "{:.0f} tokens"), ("depth", "depth {:.1f}")):
            for value, group in items.groupby(column):
                cells[form.format(value)] = _share(floats(group, "correct").tolist())
        found[str(row[CANDIDATE])] = cells
    return pd.DataFrame(found).T.rename_axis("candidate")


def losses_table(story: KVStory) -> Styler | Remark:
    """Return numbers lost and gained against the uncompressed cache, with the paired test."""
    import pandas as pd

    if not has_quality(story):
        return not_measured("Retrieval")
    rows = [
        {
            "candidate": row[CANDIDATE],
            "found": _score(row, PASSKEY),
            "lost / gained": _flips(row, "passkey"),
            "p": _p_value(row, "passkey"),
            "told in earlier turns": _score(row, DIALOGUE),
            "same answers (%)": _percent(row, "extra.dialogue_same_answers"),
            "KL (nats)": _interval(row, KL, "quality.fidelity_details.kl_{}"),
            "perplexity on docs (x)": _ratio(row, "docs"),
            "on code (x)": _ratio(row, "code"),
        }
        for row in rows_of(story.rows(COMPRESSION))
    ]
    return full_text(pd.DataFrame(rows).set_index("candidate"))


def loses_passkeys(row: Row) -> bool:
    """Whether a candidate finds fewer numbers than the uncompressed cache beyond doubt."""
    p_value = number(row, "extra.passkey_p_value")
    if p_value is None:
        return False
    lost, gained = (row[f"extra.passkey_num_{kind}"] for kind in ("lost", "gained"))
    return bool(p_value < SIGNIFICANT and lost > gained)


def presses_sentence(story: KVStory) -> str:
    """Say which ways of evicting rows fail to find numbers, and which do not."""
    if not has_quality(story):
        return ""
    presses = [
        row for row in rows_of(story.rows(COMPRESSION)) if row["extra.kv_eviction"] != "none"
    ]
    if not presses:
        return "No eviction was measured."
    failed = [f"`{row[CANDIDATE]}`" for row in presses if loses_passkeys(row)]
    kept = [f"`{row[CANDIDATE]}`" for row in presses if not loses_passkeys(row)]
    items = f"{story.reference_row(COMPRESSION)[f'{PASSKEY}.n']:.0f} prompts"
    parts = []
    if failed:
        parts.append(f"find significantly fewer: {', '.join(failed)}")
    if kept:
        parts.append(f"not told from no compression: {', '.join(kept)}")
    return f"Of the candidates that evict rows, over {items}: {'; '.join(parts)}."


def consistency_sentence(story: KVStory) -> str:
    """Say how often answers in conversations stay the same."""
    if not has_quality(story):
        return ""
    parts = [
        f"`{row[CANDIDATE]}` {row['extra.dialogue_same_answers']:.0%}"
        for row in rows_of(story.rows(COMPRESSION))
        if number(row, "extra.dialogue_same_answers") is not None
    ]
    return f"Answers in conversations that equal the uncompressed cache's: {', '.join(parts)}."


def check(story: KVStory) -> None:
    """Assert what the sections on quality claim.

    Raises:
        AssertionError: A claim does not hold for these results.
    """
    if not has_quality(story):
        return
    for row in rows_of(story.rows(COMPRESSION)):
        assert 0 <= row[f"{PASSKEY}.low"] <= row[f"{PASSKEY}.score"] <= row[f"{PASSKEY}.high"] <= 1
        if row[CANDIDATE] == story.chosen and story.chosen != story.reference:
            assert not loses_passkeys(row), "what was chosen finds what was hidden"


def _points(story: KVStory, value: str, low: str, high: str) -> pd.DataFrame:
    import pandas as pd

    rows = rows_of(story.rows(COMPRESSION))
    return pd.DataFrame(
        {
            "name": [row[CANDIDATE] for row in rows],
            "kept": [story.kept_share(row) for row in rows],
            "value": [row[value] for row in rows],
            "low": [row[low] for row in rows],
            "high": [row[high] for row in rows],
        }
    )


def _passkey_finding(story: KVStory) -> str:
    rows = rows_of(story.rows(COMPRESSION))
    kept = [row for row in rows if not loses_passkeys(row)]
    least = min(kept, key=story.kept_share)
    if least[CANDIDATE] == story.reference:
        return "Every compression finds significantly fewer hidden numbers"
    return (
        f"{least[CANDIDATE]} keeps {story.kept_share(least):.0%} of the bytes and is not told from "
        f"{story.reference}"
    )


def _share(values: list[float]) -> str:
    return f"{sum(values):.0f}/{len(values)}"


def _score(row: Row, task: str) -> str:
    return f"{row[f'{task}.score']:.0%} [{row[f'{task}.low']:.0%}, {row[f'{task}.high']:.0%}]"


def _flips(row: Row, task: str) -> str:
    if number(row, f"extra.{task}_num_lost") is None:
        return "reference"
    return f"{row[f'extra.{task}_num_lost']:.0f} / {row[f'extra.{task}_num_gained']:.0f}"


def _p_value(row: Row, task: str) -> str:
    value = number(row, f"extra.{task}_p_value")
    return "" if value is None else format_value(value, 2)


def _percent(row: Row, column: str) -> str:
    value = number(row, column)
    return "" if value is None else f"{100 * value:.0f}"


def _kl_finding(story: KVStory) -> str:
    """Name the fewest bytes below the floor of this measure, and whether others are kept."""
    kept = [row for row in rows_of(story.rows(COMPRESSION)) if row[KL] <= story.floor.max_kl]
    least = min(kept, key=story.kept_share, default=None)
    if least is None:
        return "No candidate stays below the floor"
    text = (
        f"{least[CANDIDATE]} keeps the fewest bytes below the floor: {story.kept_share(least):.0%}"
    )
    misses = story.candidate(str(least[CANDIDATE]))
    return text if misses["feasible"] else f"{text} (but misses another floor)"


def _interval(row: Row, column: str, ends: str) -> str:
    value, low, high = (number(row, c) for c in (column, ends.format("low"), ends.format("high")))
    if value is None:
        return ""
    if low is None or high is None:
        return format_value(value, 3)
    return format_interval(value, low, high)


def _ratio(row: Row, kind: str) -> str:
    base = f"quality.perplexity_ratio.{kind}"
    return _interval(row, f"{base}.ratio", f"{base}.{{}}")
