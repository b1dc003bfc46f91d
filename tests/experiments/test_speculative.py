"""Stage `speculative`: cells in the record, and the candidate that is preferred unless it loses."""

from __future__ import annotations

import dataclasses

import pandas as pd
import pytest

from infopt.experiments import speculative
from infopt.experiments.choose import choose_slice
from infopt.experiments.spec import SliceSpec, slice_spec
from infopt.results import RunRecord, record_path

CELLS = [
    {
        "workload": "edit",
        "batches": [1, 2],
        "temperatures": [0.0],
        "options": {"kind": "edit", "num_requests": 1, "text_tokens": 12, "output_tokens": 10},
    },
    {
        "workload": "chat",
        "batches": [2],
        "temperatures": [0.0, 1.0],
        "options": {"kind": "chat", "num_requests": 1, "output_tokens": 6},
    },
]
CANDIDATES = {
    "off": {"speculative": None},
    "auto": {"speculative": {"method": "auto"}},
}


@pytest.fixture
def spec(make_spec, tmp_path, monkeypatch, fixed_machine) -> SliceSpec:
    monkeypatch.setattr("infopt.experiments.devices._default_lock_dir", lambda: tmp_path / "locks")
    return make_spec(
        stage="speculative",
        name="methods",
        reference="off",
        candidates=CANDIDATES,
        base={"max_model_len": 256, "num_kv_pages": 200, "dtype": "float32"},
        options={"cells": CELLS},
        decides=False,
    )


def test_every_cell_of_a_candidate_is_in_its_record(spec: SliceSpec, tmp_path) -> None:
    manifest = speculative.run(spec, tmp_path, num_threads=1)
    assert manifest["records"] == ["methods.off", "methods.auto"]
    record = RunRecord.read(record_path("speculative", "methods.auto", tmp_path))
    assert record.extra is not None
    assert record.samples is not None
    samples, num_cells = record.samples, 4
    counted = [i for i, flag in enumerate(samples["cells.is_degenerate"]) if not flag]
    assert record.extra["num_cells"] == len(counted) == num_cells
    names = record.extra["cell_workloads"].split()
    assert [names[int(samples["cells.workload"][i])] for i in counted] == [
        *("edit", "edit", "chat", "chat")
    ]
    assert [samples["cells.batch"][i] for i in counted] == [1, 2, 2, 2]
    assert [samples["cells.temperature"][i] for i in counted] == [0, 0, 0, 1]
    assert record.extra["cells_undecided"] == num_cells, "two pairs prove nothing"
    assert {len(v) for k, v in samples.items() if k.startswith("cells.")} == {
        len(samples["cells.ratio"])
    }
    assert record.extra["speculative_method"] == "auto"
    assert record.extra["spec_steps_learn"] >= 0
    assert record.workload is not None
    assert record.workload["cells"][0]["batches"] == [1, 2]
    off = RunRecord.read(record_path("speculative", "methods.off", tmp_path))
    assert off.extra is not None
    assert off.extra["speculative_method"] == "none"
    assert "num_cells" not in off.extra


def test_other_cells_are_other_work(spec: SliceSpec, tmp_path) -> None:
    """A record of fewer cells must not be taken over."""
    fewer = dataclasses.replace(spec, options={"cells": CELLS[:1]})
    assert fewer.workload() != spec.workload()
    assert SliceSpec.from_json(spec.to_json()).workload() == spec.workload()


def test_the_default_stage_has_its_slices(config) -> None:
    deciding = slice_spec(config, "speculative", "speculation")
    assert deciding.prefers == "auto"
    assert deciding.decides
    assert deciding.options == {}
    methods = slice_spec(config, "speculative", "methods")
    cells = speculative.cells_of(methods)
    assert {c.workload for c in cells} == {"edit", "code", "summarize", "chat"}
    assert {c.temperature for c in cells} == {0.0, 1.0}
    assert max(c.batch for c in cells) == 32
    assert methods.options["cells"][0]["options"]["kind"] == "edit"
    assert not methods.decides


def rows(verdict: str, ratio: float) -> pd.DataFrame:
    """Two runs of the deciding slice whose intervals tell what the verdict says."""

    def row(slug: str, rate: float) -> dict[str, object]:
        return {
            "run": f"speculative/speculation.{slug}",
            "stage": "speculative",
            "slug": f"speculation.{slug}",
            "status": "ok",
            "hardware_id": "one",
            "started": "2026-01-01T00:00:00Z",
            "config.model": "m",
            "config.speculative.method": None if slug == "off" else "auto",
            "throughput.output_tokens_per_s": rate,
            "throughput.output_tokens_per_s.low": rate * 0.999,
        }

    table = pd.DataFrame([row("off", 100.0), row("auto", 100.0 * ratio)])
    base = "comparison.output_tokens_per_s"
    ends = {"better": (ratio * 0.99, ratio * 1.01), "worse": (ratio * 0.99, ratio * 1.01)}
    low, high = ends.get(verdict, (0.9, 1.1))
    values = {"median": ratio, "low": low, "high": high, "num_pairs": 6}
    for name, value in values.items():
        table[f"{base}.{name}"] = [None, value]
    table[f"{base}.verdict"] = [None, verdict]
    table[f"{base}.reference"] = [None, "speculation.off"]
    return table


@pytest.mark.parametrize(
    ("verdict", "ratio", "chosen"),
    [("better", 1.3, "auto"), ("undecided", 1.0, "auto"), ("worse", 0.8, "off")],
)
def test_what_adapts_is_taken_unless_it_loses(make_spec, verdict, ratio, chosen) -> None:
    spec = make_spec(
        stage="speculative",
        name="speculation",
        reference="off",
        candidates=CANDIDATES,
        prefers="auto",
    )
    entry = choose_slice(rows(verdict, ratio), spec, None)
    assert entry["chosen"] == chosen
    assert entry["engine"] == CANDIDATES[chosen]
    assert entry["reference_engine"] == CANDIDATES["off"]
    if verdict == "undecided":
        assert "prefers it where it does not lose" in entry["reason"]
        plain = choose_slice(rows(verdict, ratio), dataclasses.replace(spec, prefers=None), None)
        assert plain["chosen"] == "off", "it changes fewer options"
