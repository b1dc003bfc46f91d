"""Stage moe: what its probes add to a record, and what is refused before anything runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from infopt.bench.moe_pair import predicted_ratio
from infopt.errors import ConfigError, MeasurementError
from infopt.experiments import moe
from infopt.experiments.config import complete_config
from infopt.experiments.spec import SliceSpec, slice_names, slice_spec
from infopt.models.config import ModelConfig
from infopt.models.hf_config import hf_config
from infopt.results import RunRecord, record_path

CURVE = {"batches": [1, 2], "prompt_tokens": 17, "output_tokens": 4, "repeats": 2}
SIZES = {"num_layers": 1, "hidden_size": 64, "num_heads": 4}


@pytest.fixture(autouse=True)
def own_machine(tmp_path, monkeypatch, fixed_machine):
    monkeypatch.setattr("infopt.experiments.batch_curve.machine_peaks", lambda llm: fixed_machine)
    monkeypatch.setattr("infopt.experiments.devices._default_lock_dir", lambda: tmp_path / "locks")


def hf_checkpoint_config(folder: str) -> ModelConfig:
    return hf_config(json.loads(Path(folder, "config.json").read_text()))


@pytest.fixture
def run(make_spec, tmp_path):
    """Run a slice and return its records by candidate."""

    def run_spec(**changes: Any) -> dict[str, RunRecord]:
        spec = make_spec(stage="moe", decides=False, **changes)
        moe.run(SliceSpec.from_json(spec.to_json()), tmp_path)
        return {
            slug: RunRecord.read(record_path("moe", spec.record_slug(slug), tmp_path))
            for slug in spec.candidates
        }

    return run_spec


def test_two_models_of_one_tokenizer_are_compared(run, tiny_model_dir):
    models = {"dense": str(tiny_model_dir("llama")), "moe": str(tiny_model_dir("mixtral"))}
    own_config, base_config = (hf_checkpoint_config(models[name]) for name in ("moe", "dense"))
    records = run(
        name="pair",
        reference="dense",
        candidates={name: {"model": path} for name, path in models.items()},
        options={"batch_curve": CURVE},
    )
    assert {name: record.config["model"] for name, record in records.items()} == models
    own, base = records["moe"], records["dense"]
    assert own.samples is not None
    assert base.samples is not None
    assert own.samples["batch_curve.batch"] == [1, 2]
    assert own.samples["batch_curve.num_pairs"] == [2, 2]
    # Ten operations per byte, four bytes per weight, two operations per weight and token.
    assert own.samples["batch_curve.predicted"] == [
        predicted_ratio(own_config, base_config, batch, ridge_tokens=20.0) for batch in (1, 2)
    ]
    assert not [name for name in base.samples if name.startswith("batch_curve.")]
    assert own.extra is not None
    assert base.extra is not None
    assert (own.extra["num_experts"], own.extra["top_k"]) == (6, 2)
    assert base.extra["num_experts"] == 0
    assert own.extra["num_active_parameters"] < own.extra["num_parameters"]
    # Sequences share the weights of a step; those of a mixture share fewer.
    shares = [
        r.extra["read_bytes_per_token_8"] / r.extra["read_bytes_per_token_1"] for r in (base, own)
    ]
    assert shares[0] == pytest.approx(1 / 8)
    assert shares[1] > shares[0]


def test_random_models_are_written_for_the_run_and_removed(run, tmp_path):
    shapes = {
        "dense": {"intermediate_size": 128, **SIZES},
        "moe": {"intermediate_size": 64, "num_experts": 4, "top_k": 2, **SIZES},
    }
    records = run(
        name="speed",
        reference="dense",
        candidates={"dense": {}, "moe": {}},
        options={"batch_curve": CURVE, "random_models": shapes},
    )
    extra = records["moe"].extra
    assert extra is not None
    assert extra["num_experts"] == 4
    assert extra["grouped_rows"] == moe.GROUPED_ROWS
    assert extra["grouped_low"] <= extra["grouped_median"] <= extra["grouped_high"]
    assert "grouped_median" not in (records["dense"].extra or {})
    assert records["moe"].workload["random_models"] == shapes
    assert records["moe"].config["model"].endswith("random-speed/moe")
    assert not (tmp_path / "models" / "random-speed").exists()


def test_experts_are_counted_on_both_kinds_of_text(run, tiny_model_dir):
    records = run(
        name="experts",
        model=str(tiny_model_dir("mixtral")),
        reference="uncounted",
        candidates={"uncounted": {}, "counted": {"expert_stats": True}},
        options={"expert_load": {"prompt_tokens": 16, "output_tokens": 5, "batches": [1, 3]}},
    )
    samples, extra = records["counted"].samples, records["counted"].extra
    assert samples is not None
    assert extra is not None
    for kind in ("docs", "code"):
        # Each token goes to two experts in each of the sparse layers.
        tokens = extra[f"experts_{kind}_prefill_tokens"] + extra[f"experts_{kind}_decode_tokens"]
        assert tokens == 4 * (16 + 4)
        layers = set(samples[f"load.{kind}.layer"])
        assert sum(samples[f"load.{kind}.tokens"]) == 2 * tokens * len(layers)
        assert samples[f"distinct.{kind}.rows"] == [1, 3]
        assert samples[f"distinct.{kind}.mean"][0] == 2
        for most, bound in zip(
            samples[f"distinct.{kind}.most"], samples[f"distinct.{kind}.bound"], strict=True
        ):
            assert most <= bound
        assert len(samples[f"balance.{kind}.jain"]) == len(layers)
    assert samples["load.docs.tokens"] != samples["load.code.tokens"]
    assert not [n for n in records["uncounted"].samples or {} if n.startswith("load.")]


def test_a_dense_model_has_no_experts_to_count(run):
    with pytest.raises(MeasurementError, match="no experts to count"):
        run(
            name="experts",
            reference="counted",
            candidates={"counted": {"expert_stats": True}},
            options={"expert_load": {"prompt_tokens": 8, "output_tokens": 2, "batches": [1]}},
        )


def test_random_models_are_removed_when_the_run_fails(make_spec, tmp_path):
    shapes = {"dense": {"intermediate_size": 128, **SIZES}}
    spec = make_spec(
        stage="moe",
        name="speed",
        reference="dense",
        candidates={"dense": {"quantization": "q4_1"}},
        options={"random_models": shapes},
    )
    with pytest.raises(MeasurementError):
        moe.run(spec, tmp_path)
    assert not (tmp_path / "models" / "random-speed").exists()


ENTRY: dict[str, Any] = {"workload": "steady", "candidates": [{"slug": "a"}]}
LOAD = {"prompt_tokens": 4, "output_tokens": 4, "batches": [1]}


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("batch_curve", {**CURVE, "batches": [2, 1]}, "at least one number, rising"),
        ("batch_curve", {**CURVE, "batches": []}, "at least one number, rising"),
        ("batch_curve", {**CURVE, "batches": 4}, "at least one number, rising"),
        ("batch_curve", {**CURVE, "repeats": 0}, "repeats must be a whole number >= 1"),
        ("batch_curve", {"batches": [1]}, "needs 'prompt_tokens'"),
        ("batch_curve", {**CURVE, "batch": 1}, "Did you mean 'batches'"),
        ("expert_load", {**LOAD, "output_tokens": 1.5}, "output_tokens must be a whole number"),
        ("expert_load", {**LOAD, "batches": [0]}, "batches must be a whole number >= 1"),
        ("random_models", {}, "no model for the candidate 'a'"),
        ("random_models", {"b": {"intermediate_size": 4}}, "Unknown option 'b'"),
        ("random_models", {"a": {"num_layers": 1}}, "needs 'intermediate_size'"),
        ("random_models", {"a": {"intermediate_size": 0}}, "intermediate_size must be"),
    ],
)
def test_impossible_options_are_refused_before_the_run(schema, option, value, message):
    with pytest.raises(ConfigError, match=message):
        complete_config({"moe": {"own": {**ENTRY, option: value}}}, schema)


def test_candidates_have_models_only_where_their_slice_has_its_own(schema):
    candidates = [{"slug": "a", "engine": {"model": "tiny-moe"}}]
    entry = {"workload": "steady", "candidates": candidates}
    complete_config({"moe": {"own": {**entry, "model": "tiny-dense"}}}, schema)
    with pytest.raises(ConfigError, match="the model is set once"):
        complete_config({"moe": {"own": entry}}, schema)


def test_the_default_stage_explains_and_starts_from_no_earlier_choice(config):
    chosen = {
        "quantization": "q4_1",
        "dtype": "bfloat16",
        "kv_cache_dtype": "int8",
        "kv_eviction": {"method": "snapkv", "budget": 0.5},
        "speculative": {"method": "auto"},
        "scheduling": "static",
        "max_num_seqs": 1,
    }
    for name in [n for n in slice_names(config, "moe") if n != "routing"]:
        spec = slice_spec(config, "moe", name)
        assert not spec.decides
        for slug in spec.candidates:
            assert spec.inherit(chosen).engine_config(slug) == spec.engine_config(slug), slug
        assert SliceSpec.from_json(spec.to_json()) == spec
