"""The judge of jobs on Slurm sees what it is there for; no cluster is needed for that."""

from __future__ import annotations

import pytest
import slurm_jobs as judge

TIMING = {"baseline_slice", "finalists"}


def line(comment: str, minute: int, **changes: str) -> str:
    """A job as squeue prints it: two minutes of a rule, alone on its node if it measures."""
    values = {
        "Comment": comment,
        "State": "COMPLETED",
        "NumCPUs": "2",
        "OverSubscribe": "NO" if comment.startswith(("rule_baseline_slice", "rule_fin")) else "YES",
        "tres-per-job": "N/A",
        "tres-per-node": "N/A",
        "TimeUsed": "2:00",
        "StartTime": f"2026-01-02T03:{minute:02}:00",
        "EndTime": f"2026-01-02T03:{minute + 2:02}:00",
    } | changes
    fields = (field.split(":") for field in judge.FORMAT.split(","))
    return "".join(values[name].ljust(int(width)) for name, width in fields)


def run(*more: str) -> str:
    good = [
        line("rule_baseline_slice_wildcards_precision", 0),
        line("rule_slice_figure_wildcards_baseline_precision", 2),
        line("rule_baseline_table", 2),
        line("rule_finalists", 4),
    ]
    return "\n".join([*good, *more])


def test_a_good_run_has_no_faults() -> None:
    """Jobs that follow at once, and jobs that do not measure beside each other, are right."""
    jobs = judge.parse(run())
    assert [job.name for job in jobs][1:3] == [
        "slice_figure/baseline_precision",
        "baseline_table",
    ]
    assert judge.faults(jobs, TIMING, {}) == []
    assert len(judge.table(jobs).splitlines()) == 5


@pytest.mark.parametrize(
    ("comment", "minute", "changes", "fault"),
    [
        ("rule_plot", 5, {}, "finalists ran beside plot"),
        ("rule_plot", 6, {"OverSubscribe": "NO"}, "plot: alone on its node"),
        ("rule_baseline_slice_wildcards_b", 6, {"OverSubscribe": "OK"}, "baseline_slice/b: not al"),
        ("rule_plot", 6, {"tres-per-job": "gres:gpu:1"}, "plot asks for gres:gpu:1"),
        ("rule_plot", 6, {"tres-per-node": "gres:gpu:0"}, "plot asks for gres:gpu:0"),
        ("rule_plot", 6, {"State": "FAILED"}, "plot: FAILED instead of COMPLETED"),
        ("rule_baseline_table", 6, {}, "baseline_table: COMPLETED, COMPLETED instead of"),
    ],
)
def test_a_fault_is_named(comment: str, minute: int, changes: dict[str, str], fault: str) -> None:
    jobs = judge.parse(run(line(comment, minute, **changes)))
    found = judge.faults(jobs, TIMING, {})
    assert any(text.startswith(fault) for text in found), found


def test_an_interrupted_job_ends_as_it_should_and_is_run_again() -> None:
    ended = line("rule_baseline_slice_wildcards_b", 6, State="CANCELLED")
    again = line("rule_baseline_slice_wildcards_b", 8)
    wanted = {"baseline_slice/b": "CANCELLED"}
    assert judge.faults(judge.parse(run(ended, again)), TIMING, wanted) == []
    for text in (run(ended), run(again), run(again, ended)):
        assert any(
            "baseline_slice/b:" in f for f in judge.faults(judge.parse(text), TIMING, wanted)
        )
    assert "did not run" in judge.faults(judge.parse(run()), TIMING, wanted)[0]


def test_a_timing_rule_without_a_job_is_a_fault() -> None:
    assert judge.faults(judge.parse(run()), TIMING | {"capacity"}, {}) == ["no job of capacity ran"]


def test_the_profile_names_the_timing_rules() -> None:
    assert {"baseline_slice", "finalists", "capacity"} <= judge.timing_rules()
