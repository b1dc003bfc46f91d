"""What the notebook says about a server under load follows from the numbers it is given."""

from pathlib import Path

import pandas as pd
import pytest

from infopt.experiments.findings import serving
from infopt.experiments.findings.serving import LoadStory
from infopt.experiments.yaml_files import write_yaml
from infopt.results import write_table


@pytest.fixture
def story():
    """Two rates: one that is kept, one that is not."""
    rows = [
        {
            "run": f"serving/load.rate-{rate}",
            "slug": f"load.rate-{rate}",
            "stage": "serving",
            "status": "ok",
            "extra.candidate": f"{rate}/s",
            "extra.rate_per_s": float(rate),
            "extra.transport": "http",
            "extra.is_good": met == 20,
            "slo.num_met": met,
            "slo.num_requests": 20,
            "slo.goodput_share": met / 20,
            "slo.goodput_requests_per_s": goodput,
            "slo.limits.ttft_s": 1.0,
            "slo.limits.tpot_s": float("nan"),
            "latency.ttft_s.p50": ttft,
            "latency.ttft_s.p90": ttft * 2,
            "latency.e2e_s.p50": ttft * 3,
        }
        for rate, met, goodput, ttft in ((4, 20, 3.9, 0.1), (8, 5, 1.5, 2.5))
    ]
    saturation = {"last_good_per_s": 4.0, "first_bad_per_s": 8.0, "target_share": 0.9}
    saturation |= {"sentence": "90% of requests kept the objective up to 4 requests/s"}
    return LoadStory(pd.DataFrame(rows), saturation, "note", is_miniature=False)


def test_sentences_quote_the_numbers(story):
    assert story.bracket == (4.0, 8.0)
    assert story.limits == {"ttft_s": 1.0}
    text = serving.meaning(story)
    assert "From 4 to 8 requests/s" in text
    assert "from 100 ms to 2500 ms" in text
    assert "highest at 4 requests/s, with 3.9 requests/s" in text
    assert serving.answer(story) == (
        "**90% of requests kept the objective up to 4 requests/s.** The objective: `ttft_s` <= 1 s."
    )
    assert list(serving.load_table(story).index) == ["4/s", "8/s"]
    serving.check(story)


@pytest.mark.parametrize(
    ("row", "column", "value"),
    [
        (0, "status", "failed"),
        (0, "extra.transport", "none"),
        (0, "slo.num_met", 19),
        (1, "slo.num_requests", 5),
    ],
)
def test_a_claim_that_does_not_hold_ends_the_notebook(story, row, column, value):
    story.table.loc[row, column] = value
    with pytest.raises(AssertionError):
        serving.check(story)


def test_results_of_the_pipeline_come_first(story, tmp_path: Path):
    write_table(story.table.iloc[::-1], tmp_path / "tables" / "serving.parquet")
    write_yaml({"saturation": dict(story.saturation)}, tmp_path / "chosen" / "serving.yaml")
    found = serving.load_story(tmp_path)
    assert list(found.table["extra.rate_per_s"]) == [4, 8]
    assert not found.is_miniature
    assert found.ttft == "latency.ttft_s.p90"
    assert "pipeline" in found.note
