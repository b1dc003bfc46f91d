"""The account of a run's time."""

import json
import logging

import nbformat

from infopt.experiments.summary import write_summary


def test_durations_are_added_per_stage_and_compared_with_the_budget(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    (tmp_path / "model.json").write_text(json.dumps({"duration_s": 3}))
    for name, stage, seconds in (("a", "batching", 20), ("b", "batching", 15), ("c", "select", 5)):
        document = {"stage": stage, "slice": name, "duration_s": seconds}
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
    notebook = nbformat.v4.new_notebook(metadata={"papermill": {"duration": 7.5}})
    nbformat.write(notebook, tmp_path / "00_x.ipynb")
    table = write_summary(
        model_path=tmp_path / "model.json",
        manifest_paths=[tmp_path / f"{n}.json" for n in "abc"],
        notebook_paths=[tmp_path / "00_x.ipynb"],
        budget_s={"models": 10, "batching": 30, "select": 30, "notebooks": 30},
        path=tmp_path / "durations.csv",
    )
    by_job = table.set_index("job")
    assert by_job.loc["a", "stage_duration_s"] == 35
    assert list(by_job["is_over_budget"]) == [False, True, True, False, False]
    assert by_job.loc["00_x", "duration_s"] == 7.5
    assert "batching took 35 s, its budget is 30 s" in caplog.text
    assert "select" not in caplog.text
    assert (tmp_path / "durations.csv").read_text().count("\n") == 6
