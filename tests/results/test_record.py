from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from infopt.bench.latency import Chunk, RequestTiming, summarize_latency
from infopt.bench.slo import SLO, evaluate_slo
from infopt.bench.stats import paired_ratio
from infopt.errors import InfoptError, ResultError
from infopt.results import RunRecord

Make = Callable[..., RunRecord]

FULL: dict[str, Any] = {
    "quality": {
        "protocol": {"tier": "screen", "seed": 0, "texts": {"docs": "a"}, "tasks": {"code": "b"}},
        "perplexity": {"docs": 13.5, "code": 6.1},
        "kl_mean": 0.003,
        "top1_agreement": 0.97,
        "tasks": {"code": {"score": 0.8, "low": 0.65, "high": 0.9, "n": 40}},
    },
    "throughput": {"output_tokens_per_s": 410.0, "num_requests": 40, "num_completed": 40},
    "memory": {"weights_bytes": 98_000_000, "kv_pool_bytes": 1 << 20, "freed_bytes": None},
    "roofline": {"bytes": 1e9, "flops": 1e9, "regime": "weight-bandwidth", "mbu": 0.5},
    "ops": {
        "backends": {"linear": {"backend": "reference", "reason": "no compiler"}},
        "batch_invariant": True,
    },
    "samples": {"ttft_s": [0.1, None, 0.2]},
    "extra": {"note": "x", "ratio": 1.5, "is_warm": True},
}


def test_a_full_record_survives_writing_and_reading(make_record: Make, tmp_path: Path) -> None:
    record = make_record(**FULL)
    path = record.write(tmp_path)
    assert path == tmp_path / "runs" / "batching" / "max_num_seqs=8.json"
    read = RunRecord.read(path)
    assert read == record
    assert read.engine_config().max_num_seqs == 8


def test_numpy_torch_and_dataclass_values_become_plain(make_record: Make, tmp_path: Path) -> None:
    record = make_record(
        memory={"weights_bytes": np.int64(7), "kv_bytes_per_token": np.float32(2.5)},
        throughput={"output_tokens_per_s": torch.tensor(4.0)},
        extra={"flag": np.bool_(True)},
    )
    read = RunRecord.read(record.write(tmp_path))
    assert read.memory == {"weights_bytes": 7, "kv_bytes_per_token": 2.5}
    assert read.throughput == {"output_tokens_per_s": 4.0}
    assert read.extra == {"flag": True}


def test_sections_take_what_the_measuring_modules_return(make_record: Make, tmp_path: Path) -> None:
    """Records are written from ``to_dict()`` of latency, SLO and paired results unchanged."""
    timings = [RequestTiming(0.0, 0.0, 0.0, (Chunk(0.1, 1), Chunk(0.2, 1)), 0.2)] * 12
    slo = SLO(ttft_s=0.2, percentile=90)
    ratio = paired_ratio([1.0] * 6, [2.0, 2.1, 1.9, 2.0, 2.0, 2.0], higher_is_better=True)
    record = make_record(
        latency=summarize_latency(timings).to_dict(),
        slo={"name": "own", "limits": slo.to_dict(), **evaluate_slo(slo, timings, 2.0).to_dict()},
        comparison={
            "output_tokens_per_s": {
                **{n: getattr(ratio, n) for n in ("median", "low", "high", "num_pairs", "verdict")},
                "reference": "static",
            }
        },
    )
    read = RunRecord.read(record.write(tmp_path))
    assert read.latency["ttft_s"]["p90"] == pytest.approx(0.1)
    assert read.latency["ttft_s"]["p99"] is None
    assert read.slo["goodput_requests_per_s"] == pytest.approx(6.0)
    assert read.comparison["output_tokens_per_s"]["verdict"] == "better"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -np.inf])
def test_numbers_that_are_none_are_refused_by_name(
    make_record: Make, tmp_path: Path, value: float
) -> None:
    record = make_record(latency={"ttft_s": {"p50": value, "count": 1}})
    with pytest.raises(ResultError, match=r"latency\.ttft_s\.p50") as caught:
        record.write(tmp_path)
    assert caught.value.field == "latency.ttft_s.p50"
    assert not list(tmp_path.rglob("*"))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"latency": {"tttf_s": None}}, "latency.tttf_s"),
        ({"quality": {"protocol": {"tier": "x"}, "kl": 0.1}}, "quality.kl"),
        ({"memory": {"weights_bytes": -1}}, "memory.weights_bytes"),
        ({"roofline": {"regime": "cosmic"}}, "roofline.regime"),
        ({"energy": {"j_per_token": 0, "j_per_request": 1, "source": "nvml", "reason": None}},
         "energy.j_per_token"),
        ({"energy": {"j_per_token": None, "j_per_request": None, "source": None, "reason": None}},
         "energy.reason"),
        ({"energy": {"j_per_token": 1.0, "j_per_request": None, "source": None, "reason": None}},
         "energy.source"),
        ({"cost": {"per_million_output_tokens": None, "per_request": None, "currency": None,
                   "per_machine_hour": 1.0, "reason": ""}}, "cost.reason"),
        ({"status": "failed"}, "identity.failure"),
        ({"started": "yesterday"}, "identity.started"),
        ({"hardware": {}}, "identity.hardware"),
        ({"extra": {"nested": {"a": 1}}}, "extra.nested"),
        ({"config": {"model": "tiny", "max_num_seq": 8}}, "identity.config.max_num_seq"),
    ],
)  # fmt: skip
def test_what_the_schema_does_not_allow_is_named(
    make_record: Make, tmp_path: Path, changes: dict[str, Any], field: str
) -> None:
    """A misspelt or impossible value must not slip into a record, where nobody would find it.

    Energy of 0 and an unexplained gap are among them: counters that could not be read once gave
    tables full of zeros.
    """
    with pytest.raises(ResultError) as caught:
        make_record(**changes).write(tmp_path)
    assert caught.value.field == field
    assert field.rsplit(".", 1)[-1] in str(caught.value)
    assert not list(tmp_path.rglob("*.json"))


def test_an_unknown_key_gets_the_nearest_valid_one(make_record: Make, tmp_path: Path) -> None:
    with pytest.raises(ResultError, match=r"'latency\.tttf_s'.*Did you mean 'ttft_s'"):
        make_record(latency={"tttf_s": None}).write(tmp_path)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"schema_version": 1}', '{"a": 1, "a": 2}', '{"a": NaN}', "\udcff"],
)
def test_a_broken_file_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "broken.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ResultError, match=r"broken\.json"):
        RunRecord.read(path)


def test_another_schema_version_is_refused(make_record: Make, tmp_path: Path) -> None:
    path = make_record().write(tmp_path)
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document | {"schema_version": 2}))
    with pytest.raises(ResultError, match="schema version 2"):
        RunRecord.read(path)


@pytest.mark.parametrize("slug", ["", "../x", "a/b", ".x", "A", "a b", "a\n", "é", "a" * 200])
def test_unsafe_names_never_become_files(make_record: Make, tmp_path: Path, slug: str) -> None:
    with pytest.raises(ResultError) as caught:
        make_record(slug=slug).write(tmp_path / "a" / "b")
    assert caught.value.field == "slug"
    assert not list(tmp_path.rglob("*"))


def test_the_notebook_view_shows_numbers_and_escapes(make_record: Make) -> None:
    text = make_record(**FULL, workload={"kind": "<b>"})._repr_html_()
    assert "410 tokens/s" in text
    assert "energy was not measured in this run" in text
    failure = {"type": "CapacityError", "message": "<script>", "field": None, "remedy": "smaller"}
    text = make_record(status="failed", failure=failure)._repr_html_()
    assert "<script>" not in text and "&lt;script&gt;" in text and "smaller" in text


def test_errors_are_infopt_errors() -> None:
    assert issubclass(ResultError, InfoptError)
