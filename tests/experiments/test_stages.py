"""Stages: what the baseline adds, how winners are composed, chosen and validated."""

import dataclasses

import pytest

from infopt.bench.op_times import BETWEEN
from infopt.bench.roofline_ops import OPS
from infopt.errors import ConfigError
from infopt.experiments import baseline, select
from infopt.experiments.choose import choose_slice, collect_stage
from infopt.experiments.recommend import choose_finalist, recommend
from infopt.experiments.select_spec import COMPOSED, CONTINUOUS, STATIC, UNOPTIMIZED, select_spec
from infopt.experiments.stages import STAGES, chosen_options, run_stage
from infopt.experiments.tables import collect, retire_others
from infopt.experiments.yaml_files import read_yaml
from infopt.results import RunRecord, read_json, read_table, record_path, write_json
from infopt.select import read_recommendation, write_recommendation


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
    tried = select_spec(config, "finalists")
    spec = select.finalists(tried, chosen(), ["scheduling", "page_size", "gone"], 12.5)
    assert spec.reference == COMPOSED
    assert spec.candidates == {
        COMPOSED: {"dtype": "bfloat16", "scheduling": "continuous", "block_size": 16},
        UNOPTIMIZED: {"dtype": "float32", "scheduling": "static", "block_size": 16},
        # page_size won with its reference: there is nothing to take back
        "without-scheduling": {"dtype": "bfloat16", "scheduling": "static", "block_size": 16},
    }
    load = spec.workloads["load"]
    assert load["arrivals"]["rate"] == 12.5  # what the composition sustains
    assert load["num_requests"] == 20  # half a second would be too few


def test_by_default_the_winner_of_every_question_that_decides_is_taken_back_once(config):
    stages = chosen()
    stages[1]["slices"]["explains"] = {
        "engine": {"block_size": 32},
        "reference_engine": {"block_size": 16},
        "decides": False,
    }
    stages.append(  # a stage that nobody here knows
        {"slices": {"routing": {"engine": {"seed": 3}, "reference_engine": {"seed": 0}}}}
    )
    spec = select.finalists(select_spec(config, "finalists"), stages, None, 1.0)
    names = ["without-precision", "without-scheduling", "without-routing"]
    assert list(spec.candidates) == [COMPOSED, UNOPTIMIZED, *names]
    assert spec.candidates[COMPOSED]["seed"] == 3
    assert spec.candidates["without-routing"]["seed"] == 0


def test_finalists_that_no_stage_has_judged_are_judged(config):
    """Pins: with two lossy winners, the run without the first had no quality and was refused."""
    stages = chosen()
    schemes = {"engine": {"quantization": "int8"}, "reference_engine": {"quantization": "none"}}
    stages.append({"slices": {"schemes": schemes}})
    spec = select.finalists(select_spec(config, "finalists"), stages, None, 1.0)
    assert "without-scheduling" in spec.candidates
    assert (spec.quality_tier, spec.options["judged"]) == ("screen", ["without-precision"])
    judge = {"dtype": "float32", "scheduling": "static", "block_size": 16, "quantization": "none"}
    assert spec.quality_reference == judge
    assert spec.workload()["judged"] == ["without-precision"], "it is another record"
    # With one lossy winner each step has been judged by a stage.
    spec = select.finalists(select_spec(config, "finalists"), chosen(), None, 1.0)
    assert (spec.quality_tier, spec.options["judged"]) == (None, [])
    # What is asked for by name is measured for all.
    config["select"]["quality_tier"] = "full"
    spec = select.finalists(select_spec(config, "finalists"), stages, None, 1.0)
    assert (spec.quality_tier, spec.options["judged"]) == ("full", [*spec.candidates])


CAPACITIES = {
    "candidates": {STATIC: {"max_num_seqs": 8}, CONTINUOUS: {}, COMPOSED: {"block_size": 32}},
    "capacity": {
        STATIC: {"rate_per_s": 3.0, "batch_size": 4, "timeout_s": 0.1, "slo_factor": 1.0},
        CONTINUOUS: {"rate_per_s": 6.0, "batch_size": None, "timeout_s": None},
        COMPOSED: {"rate_per_s": 9.0, "batch_size": None, "timeout_s": None},
    },
}


def test_validation_loads_the_choice_and_the_baselines_with_their_own_rates(config):
    tried = {
        "records": ["finalists.composed", "finalists.unoptimized"],
        "candidates": {COMPOSED: {"block_size": 32}, UNOPTIMIZED: {"block_size": 16}},
    }
    wanted = select_spec(config, "validation")
    spec = select.validation(wanted, tried, CAPACITIES, "select/finalists.composed")
    assert list(spec.candidates) == [COMPOSED, STATIC, CONTINUOUS]
    assert (spec.reference, spec.seeds, spec.repeats) == (COMPOSED, tuple(range(1001, 1007)), 6)
    assert spec.load_of(COMPOSED) == {"rate_per_s": 0.9 * 9.0, "fill": None}
    assert spec.load_of(STATIC) == {
        "rate_per_s": 0.9 * 3.0,  # some room: fresh arrivals differ
        "fill": {"size": 4, "timeout_s": 0.1},
    }
    assert spec.slo == config["slo"]
    assert select.validation(wanted, tried, CAPACITIES, None).candidates == {}


def test_a_baseline_that_serves_nothing_is_compared_under_a_relaxed_objective(config):
    tried = {"records": ["finalists.composed"], "candidates": {COMPOSED: {}}}
    static = {**CAPACITIES["capacity"][STATIC], "slo_factor": 2.0}
    rates = {**CAPACITIES, "capacity": {**CAPACITIES["capacity"], STATIC: static}}
    wanted = select_spec(config, "validation")
    spec = select.validation(wanted, tried, rates, "select/finalists.composed")
    assert (spec.slo["ttft_s"], spec.slo["tpot_s"]) == (0.6, 0.2)


def test_a_changed_objective_is_another_measurement_of_the_last_stage_only(config):
    """Pins: goodput under one objective was taken over for another."""
    other = {**config, "slo": {"ttft_s": 3.0}}
    for name in ("capacity", "finalists", "validation"):
        assert select_spec(config, name).workload() != select_spec(other, name).workload()


def test_an_unknown_slice_of_the_last_stage_is_named(config):
    with pytest.raises(ConfigError, match=r"'finalist'.*'finalists'"):
        select_spec(config, "finalist")


def test_an_unknown_stage_is_named():
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
        winners_path=tmp_path / "winners.yaml",
    )
    table = read_table(tmp_path / "batching.parquet")
    assert list(table["slug"]) == sorted(["page_size.page-16", "page_size.page-8"])
    entry = read_yaml(tmp_path / "batching.yaml")["slices"]["page_size"]
    assert entry["chosen"] == "page-16"  # two pairs decide nothing: the default stays
    assert entry["status"] == "undecided"
    assert read_yaml(tmp_path / "batching.yaml")["quality_floor"] == "default"
    # What the next stages read holds no reason and no number: the same winner is the same file.
    assert read_yaml(tmp_path / "winners.yaml") == {
        "stage": "batching",
        "engine": {"block_size": 16},
        "slices": {
            "page_size": {
                "engine": {"block_size": 16},
                "reference_engine": {"block_size": 16},
                "decides": True,
            }
        },
    }
    assert chosen_options(tmp_path / "winners.yaml") == {"block_size": 16}


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
        search = {"duration_s": 0.05, "pair_s": 0.05, "min_requests": 3}
        search |= {"target_share": 0.5, "num_bisections": 0}
        options = {
            "stage": "select",
            "criterion": "throughput",
            "base": make_spec().base,
            "slo": changes.get("slo", {"ttft_s": 60.0, "percentile": 50}),
            "load": "open",
            "candidates": {},
            "reference": "",
            "options": {"search": search},
        }
        static = {"batch_sizes": [2], "fill_timeouts_s": [0.01]}
        stages = chosen("continuous")[1:]
        names = ("capacity", "finalists", "validation")
        paths = {name: tmp_path / f"{name}.json" for name in names}
        rates = make_spec(**options, name="capacity")
        rates = dataclasses.replace(rates, options={"search": search, "static": static})
        write_json(paths["capacity"], run_stage(select.capacity_arms(rates, stages), tmp_path))
        found = read_json(paths["capacity"])["capacity"]
        spec = make_spec(**options, name="finalists")
        spec = select.finalists(spec, stages, None, found[COMPOSED]["rate_per_s"])
        write_json(paths["finalists"], run_stage(spec, tmp_path))
        choose_finalist(
            [paths["finalists"]],
            results_dir=tmp_path,
            slo=options["slo"],
            floor={"max_kl": 1.0, "max_perplexity_ratio": 9.0, "check_tasks": False},
            objective="throughput",
            path=tmp_path / "choice.yaml",
        )
        if not changes:  # quality was not measured here: take the composition all the same
            choice = read_recommendation(tmp_path / "choice.yaml")
            config = spec.engine_config(COMPOSED).to_dict()
            run = "select/finalists.composed"
            choice = dataclasses.replace(choice, status="chosen", run=run, config=config)
            write_recommendation(choice, tmp_path / "choice.yaml")
        choice = read_recommendation(tmp_path / "choice.yaml")
        fresh = make_spec(**options, name="validation", seeds=(11, 12))
        tried = [read_json(paths[name]) for name in ("finalists", "capacity")]
        tried = select.validation(fresh, *tried, choice.run)
        write_json(paths["validation"], run_stage(tried, tmp_path))
        return recommend(
            choice_path=tmp_path / "choice.yaml",
            manifest_paths=list(paths.values()),
            quality_paths=[],
            results_dir=tmp_path,
            slo=options["slo"],
            recommendation_path=tmp_path / "recommendation.yaml",
            table_path=tmp_path / "select.parquet",
        )

    return measure


def test_nothing_feasible_is_an_answer(tmp_path, select_stage):
    found = select_stage(slo={"ttft_s": 1e-9, "percentile": 50})
    assert found.status == "none_feasible"
    assert found.notes[0] == "Nothing was validated: no finalist keeps every limit."
    assert found.baselines == ()
    assert read_recommendation(tmp_path / "recommendation.yaml").config is None
    capacity = read_json(tmp_path / "capacity.json")["capacity"]
    assert capacity[STATIC]["slo_factor"] > 1  # relaxed until it serves something
    assert capacity[COMPOSED]["goodput_per_s"] == 0


def test_the_last_stage_compares_takes_apart_and_validates(tmp_path, select_stage):
    found = select_stage()
    gains = {gain.name: gain for gain in found.baselines}
    assert set(gains) == {STATIC, CONTINUOUS}
    for gain in gains.values():
        assert gain.num_seeds == 2
        assert gain.low <= gain.ratio <= gain.high
        assert gain.slo_factor == 1
    assert "batches of 2" in gains[STATIC].message
    assert {e.technique for e in found.ablation} == {"scheduling"}
    assert {"latency.ttft_s.p50", "energy.j_per_request"} <= {e.column for e in found.ablation}
    assert found.interactions == ()  # a single technique has nothing to interact with
    assert found.front.knee in found.front.runs
    assert found.front.left_out["kl_mean"] == "kl_mean was not measured"
    assert read_recommendation(tmp_path / "recommendation.yaml") == found
    table = read_table(tmp_path / "select.parquet")
    assert set(table["extra.slice"]) == {"capacity", "finalists", "validation"}
    record = RunRecord.read(record_path("select", "capacity.static", tmp_path))
    assert {len(values) for values in record.samples.values()} == {
        len(record.samples["search.rate_per_s"])
    }
