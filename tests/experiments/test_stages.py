"""Stages: what the baseline adds, how winners are composed, chosen and validated."""

import pytest

from infopt.bench.op_times import BETWEEN
from infopt.bench.roofline_ops import OPS
from infopt.experiments import baseline, select
from infopt.experiments.choose import choose_slice, collect_stage
from infopt.experiments.recommend import choose_finalist, recommend
from infopt.experiments.spec import COMPOSED, UNOPTIMIZED, select_spec
from infopt.experiments.stages import STAGES, chosen_options, run_stage
from infopt.experiments.tables import collect, retire_others
from infopt.experiments.yaml_files import read_yaml
from infopt.results import RunRecord, read_table, record_path, write_json
from infopt.select import read_recommendation


@pytest.fixture(autouse=True)
def on_this_machine(fixed_machine, tmp_path, monkeypatch):
    monkeypatch.setattr("infopt.experiments.devices._default_lock_dir", lambda: tmp_path / "locks")


def chosen(scheduling="continuous"):
    """What two stages might have chosen."""
    return [
        {
            "slices": {
                "precision": {
                    "engine": {"dtype": "bfloat16"},
                    "reference_engine": {"dtype": "float32"},
                }
            }
        },
        {
            "slices": {
                "scheduling": {
                    "engine": {"scheduling": scheduling},
                    "reference_engine": {"scheduling": "static"},
                },
                "page_size": {
                    "engine": {"block_size": 16},
                    "reference_engine": {"block_size": 16},
                },
            }
        },
    ]


def test_the_baseline_measures_steps_and_single_requests(tmp_path, make_spec):
    workload = {"kind": "synthetic", "num_requests": 1, "prompt_tokens": 8, "output_tokens": 3}
    spec = make_spec(
        stage="baseline",
        name="precision",
        reference="float32",
        base={"max_model_len": 128, "num_kv_pages": 64, "max_num_seqs": 4},
        candidates={"float32": {"dtype": "float32"}},
        workloads={"load": workload, "single": workload},
        repeats=1,
    )
    baseline.run(spec, tmp_path)
    record = RunRecord.read(record_path("baseline", "precision.float32", tmp_path))
    assert record.samples["decode_num_tokens"] == [1, 2, 4]  # up to max_num_seqs
    assert record.samples["prefill_num_tokens"][:2] == [16, 64]
    lengths = {len(v) for k, v in record.samples.items() if k.startswith("decode_")}
    assert lengths == {3}
    assert record.samples["decode_bytes"] == sorted(record.samples["decode_bytes"])
    ops = {k: v for k, v in record.samples.items() if k.startswith("ops.")}
    assert ops["ops.num_tokens"] == [1, 128]  # 8 and 32 sequences are beyond max_num_seqs
    assert ops["ops.num_cached"] == [127, 0]
    assert {len(values) for values in ops.values()} == {2}
    assert {k.split(".")[1] for k in ops if k.endswith("measured_s")} == {*OPS, BETWEEN}
    assert min(ops["ops.gate_up.measured_s"]) > 0
    assert ops["ops.gate_up.flops"][1] == 128 * ops["ops.gate_up.flops"][0]
    weights = 3 * 64 * 2 * 128 * 4  # layers, inputs, outputs, bytes
    assert ops["ops.gate_up.bytes"][0] == weights + 3 * (64 + 256) * 4
    assert record.extra["single_num_requests"] == 3  # three rounds of one request
    assert record.extra["single_tpot_p50_s"] > 0
    assert record.quality is None  # this slice asks for no tier


def test_the_composition_takes_every_winner_and_its_rivals_take_one_back(config):
    spec = select.finalists(
        select_spec(config, "finalists"), chosen(), ["scheduling", "page_size", "gone"]
    )
    assert spec.reference == UNOPTIMIZED
    assert spec.candidates == {
        UNOPTIMIZED: {"dtype": "float32", "scheduling": "static", "block_size": 16},
        COMPOSED: {"dtype": "bfloat16", "scheduling": "continuous", "block_size": 16},
        # page_size won with its reference: there is nothing to take back
        "without-scheduling": {"dtype": "bfloat16", "scheduling": "static", "block_size": 16},
    }


def test_validation_runs_the_choice_on_fresh_seeds(config):
    tried = {
        "records": ["finalists.unoptimized", "finalists.composed"],
        "candidates": {UNOPTIMIZED: {"block_size": 16}, COMPOSED: {"block_size": 32}},
    }
    wanted = select_spec(config, "validation")
    spec = select.validation(wanted, tried, "select/finalists.composed")
    assert list(spec.candidates) == [UNOPTIMIZED, COMPOSED]
    assert spec.seeds == (1001, 1002)
    assert select.validation(wanted, tried, "select/finalists.unoptimized").candidates == {
        UNOPTIMIZED: {"block_size": 16}
    }
    assert select.validation(wanted, tried, None).candidates == {}


def test_an_unknown_stage_is_named():
    from infopt.errors import ConfigError

    with pytest.raises(ConfigError, match=r"'batchin'.*'batching'"):
        STAGES.get("batchin")


def test_a_stage_from_measuring_to_choosing(tmp_path, make_spec):
    spec = make_spec()
    manifest = tmp_path / "page_size.json"
    write_json(manifest, run_stage(spec, tmp_path))
    collect_stage(
        [manifest],
        [spec.to_json()],
        results_dir=tmp_path,
        floor="default",
        table_path=tmp_path / "batching.parquet",
        chosen_path=tmp_path / "batching.yaml",
    )
    table = read_table(tmp_path / "batching.parquet")
    assert list(table["slug"]) == sorted(["page_size.page-16", "page_size.page-8"])
    entry = read_yaml(tmp_path / "batching.yaml")["slices"]["page_size"]
    assert entry["chosen"] == "page-16"  # two pairs decide nothing: the default stays
    assert entry["status"] == "undecided"
    assert chosen_options(tmp_path / "batching.yaml") == {"block_size": 16}


def test_where_no_candidate_keeps_the_limits_the_reference_stays(tmp_path, make_spec):
    spec = make_spec(slo={"ttft_s": 1e-9, "percentile": 50}, slo_limits=("ttft_s",))
    table = collect([run_stage(spec, tmp_path)], tmp_path)
    entry = choose_slice(table, spec, None)
    assert (entry["chosen"], entry["status"]) == ("page-16", "none_feasible")
    assert "ttft" in entry["reason"].lower()


def test_records_of_removed_candidates_are_put_aside(tmp_path, make_spec):
    """Pins: results of an option that is no longer configured were read as current ones."""
    run_stage(make_spec(), tmp_path)
    manifest = run_stage(make_spec(candidates={"page-16": {"block_size": 16}}), tmp_path)
    moved = retire_others([manifest], tmp_path)
    assert [p.name for p in moved] == ["page_size.page-8.json"]
    assert moved[0].is_file()
    assert len(collect([manifest], tmp_path)) == 1


@pytest.fixture
def select_stage(tmp_path, make_spec):
    """Finalists and validation, measured on a tiny model."""

    def measure(**changes):
        options = {"stage": "select", "criterion": "throughput", "base": make_spec().base}
        spec = make_spec(**(options | {"candidates": {}, "reference": "", "name": "finalists"}))
        spec = select.finalists(spec, chosen("continuous")[1:], [])
        slo = changes.get("slo", {"ttft_s": 60.0, "percentile": 50})
        paths = {name: tmp_path / f"{name}.json" for name in ("finalists", "validation")}
        write_json(paths["finalists"], run_stage(spec, tmp_path))
        choose_finalist(
            [paths["finalists"]],
            results_dir=tmp_path,
            slo=slo,
            floor={"max_kl": 1.0, "max_perplexity_ratio": 9.0, "check_tasks": False},
            objective="throughput",
            path=tmp_path / "choice.yaml",
        )
        choice = read_recommendation(tmp_path / "choice.yaml")
        fresh = make_spec(**options, candidates={}, reference="", name="validation", seeds=(11, 12))
        tried = select.validation(fresh, _read(paths["finalists"]), choice.run)
        write_json(paths["validation"], run_stage(tried, tmp_path))
        return recommend(
            choice_path=tmp_path / "choice.yaml",
            manifest_paths=list(paths.values()),
            results_dir=tmp_path,
            slo=slo,
            recommendation_path=tmp_path / "recommendation.yaml",
            table_path=tmp_path / "select.parquet",
        )

    return measure


def _read(path):
    from infopt.results import read_json

    return read_json(path)


def test_nothing_feasible_is_an_answer(tmp_path, select_stage):
    found = select_stage(slo={"ttft_s": 1e-9, "percentile": 50})
    assert found.status == "none_feasible"
    assert found.notes[0] == "Nothing was validated: no finalist keeps every limit."
    assert read_recommendation(tmp_path / "recommendation.yaml").config is None
