"""What sharing prefixes saves: hits, first tokens, FLOPs, and what a small pool forgets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infopt.experiments.findings.kv_cache import SHARING, KVStory
from infopt.experiments.findings.missing import Remark, not_measured
from infopt.experiments.findings.story import CANDIDATE
from infopt.experiments.findings.tables import shown_ratio
from infopt.plotting import prefix_hits, prefix_survivors
from infopt.plotting.data import floats, is_missing
from infopt.select.rows import Row, number, rows_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

TITLES = {
    "prefix_turns": "conversations",
    "prefix_system": "shared system prompts",
    "prefix_sessions": "sessions about documents",
}


def requests_of(story: KVStory, name: str) -> pd.DataFrame:
    """Return one row per candidate with a cache and request, in order of arrival."""
    import pandas as pd

    size = int(story.reference_row(name)["config.block_size"])
    tables = []
    for row in rows_of(story.rows(name)):
        if not row["config.enable_prefix_caching"]:
            continue
        curve = story.curve(name, str(row[CANDIDATE]), "sharing.")
        pages = floats(curve, "prompt_tokens") // size
        tables.append(
            pd.DataFrame(
                {
                    "name": row[CANDIDATE],
                    "prompt": floats(curve, "prompt_tokens"),
                    "cached": floats(curve, "cached_tokens"),
                    "shareable": floats(curve, "shareable_tokens"),
                    "kept": floats(curve, "kept_pages") / pages,
                }
            )
        )
    return pd.concat(tables, ignore_index=True)


def hits_axes(story: KVStory, name: str) -> Axes | Remark:
    """Draw the hit rate of a workload request by request."""
    if name not in story.slices:
        return not_measured(f"The slice `{name}`")
    rows = [row for row in rows_of(story.rows(name)) if row["config.enable_prefix_caching"]]
    parts = [f"{row[CANDIDATE]} {row['extra.sharing_hit_share']:.0%}" for row in rows]
    best = rows[0]["extra.sharing_best_hit_share"]
    title = f"Hits in {TITLES.get(name, name)}: {', '.join(parts)} of {best:.0%} that are shared"
    return prefix_hits(requests_of(story, name), title=title)


def survivors_axes(story: KVStory, name: str) -> Axes | Remark:
    """Draw what of each prompt is still cached in the end."""
    if name not in story.slices:
        return not_measured(f"The slice `{name}`")
    requests = requests_of(story, name)
    return prefix_survivors(requests, title=_survivors_finding(story, name, requests))


def sharing_table(story: KVStory) -> pd.DataFrame | Remark:
    """Return hits, saved FLOPs and time to the first token by workload and candidate."""
    import pandas as pd

    rows = [
        {
            "workload": TITLES.get(name, name),
            "candidate": row[CANDIDATE],
            "pool (tokens)": int(row["extra.sharing_pool_tokens"]),
            "hits (%)": round(100 * row["extra.sharing_hit_share"], 1),
            "best possible (%)": round(100 * row["extra.sharing_best_hit_share"], 1),
            "prefill FLOPs saved (%)": _saved(row),
            "first token, own time (ms)": round(1e3 * row["extra.sharing_service_ttft_s"], 1),
            "first token, ratio": _ratio(row),
        }
        for name in SHARING
        if name in story.slices
        for row in rows_of(story.rows(name))
    ]
    if not rows:
        return not_measured("Sharing of prefixes")
    return pd.DataFrame(rows).set_index(["workload", "candidate"])


def sharing_sentence(story: KVStory) -> str:
    """Say what the cache saved, and what a small pool loses of it."""
    parts = []
    for name in SHARING:
        if name not in story.slices:
            continue
        rows = [row for row in rows_of(story.rows(name)) if row["config.enable_prefix_caching"]]
        large = max(rows, key=lambda row: row["extra.sharing_pool_tokens"])
        small = min(rows, key=lambda row: row["extra.sharing_pool_tokens"])
        text = (
            f"in {TITLES.get(name, name)} {large['extra.sharing_hit_share']:.0%} of the prompt "
            f"tokens were found, which saves {_saved(large) or 0:.0f}% of the prefill FLOPs"
        )
        if small is not large:
            text += f" ({small['extra.sharing_hit_share']:.0%} with the small pool)"
        parts.append(text)
    sentence = "; ".join(parts)
    return f"{sentence[0].upper()}{sentence[1:]}." if parts else ""


def check(story: KVStory) -> None:
    """Assert what the section on sharing claims.

    Raises:
        AssertionError: A claim does not hold for these results.
    """
    for name in SHARING:
        for row in rows_of(story.rows(name)) if name in story.slices else ():
            found, best = row["extra.sharing_hit_share"], row["extra.sharing_best_hit_share"]
            assert found <= best + 1e-9, f"{name}: {row[CANDIDATE]} finds no more than is shared"
            if not row["config.enable_prefix_caching"]:
                assert found == 0, f"{name}: without a cache nothing is found"


def _survivors_finding(story: KVStory, name: str, requests: pd.DataFrame) -> str:
    """Say what the smallest pool still holds of the prompts."""
    rows = [row for row in rows_of(story.rows(name)) if row["config.enable_prefix_caching"]]
    small = min(rows, key=lambda row: row["extra.sharing_pool_tokens"])[CANDIDATE]
    kept = floats(requests.loc[requests["name"] == small], "kept")
    rest = kept[kept < 1]
    text = f"{small}: {len(kept) - len(rest)} of {len(kept)} prompts are still there in full"
    return f"{text}, of the others the first {rest.mean():.0%}" if len(rest) else text


def _saved(row: Row) -> float | None:
    share = number(row, "extra.sharing_saved_flops_share")
    return None if share is None else round(100 * share, 1)


def _ratio(row: Row) -> str:
    if is_missing(row.get("comparison.ttft_s.median")):
        return "reference"
    shown = shown_ratio(row, "comparison.ttft_s")
    # A single pair has no interval, so it cannot decide.
    verdict = row["comparison.ttft_s.verdict"] if "[" in shown else "(one pair)"
    return f"{shown} {verdict}"
