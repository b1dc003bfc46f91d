"""The slices of a configuration: everything that decides numbers, the same text each time."""

import copy
import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from infopt.errors import ConfigError
from infopt.experiments.spec import model_name, slice_names, slice_spec

SCHEMA_PATH = Path(__file__).parents[2] / "workflow" / "schemas" / "config.schema.yaml"

CODE = """
import sys
from infopt.experiments.config import complete_config, load_schema
from infopt.experiments.spec import slice_spec
config = complete_config({}, load_schema(sys.argv[1]))
print(slice_spec(config, "batching", "scheduling").to_json())
"""


def test_the_text_is_the_same_in_every_process():
    """Pins: parameters that hold an order of a set, a time or a temporary path rerun everything."""
    texts = {
        subprocess.run(
            [sys.executable, "-c", CODE, str(SCHEMA_PATH)],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert len(texts) == 1


def test_a_change_of_one_slice_changes_that_slice_only(config):
    before = {n: slice_spec(config, "batching", n).to_json() for n in config["batching"]}
    config["batching"]["page_size"]["candidates"][0]["engine"] = {"block_size": 4}
    after = {n: slice_spec(config, "batching", n).to_json() for n in config["batching"]}
    assert [n for n in before if before[n] != after[n]] == ["page_size"]


def test_an_unknown_slice_is_named(config):
    with pytest.raises(ConfigError, match=r"'page_sise'.*'page_size'"):
        slice_spec(config, "batching", "page_sise")


def test_the_random_model_lies_in_the_results(config):
    assert model_name("random", "out") == "out/models/random"
    assert model_name("gemma", "out") == "gemma"


def test_a_caption_reads_the_settings_in_words(config):
    words = slice_spec(config, "batching", "scheduling").describe()
    assert words["candidates"] == "static, static_padded, continuous"
    assert "output tokens (kind zipf, alpha 1.0, min 2, max 48)" in words["workload"]


def test_only_slices_that_depend_on_the_objective_carry_it(config):
    """Pins: another objective measured everything again."""
    carries = {
        f"{stage}.{name}"
        for stage in ("baseline", "batching", "quantization", "kv_cache", "speculative", "serving")
        for name in slice_names(config, stage)
        if slice_spec(config, stage, name).slo
    }
    assert carries == {"batching.token_budget", "serving.load"}
    # limits only choose among what was measured: the records of these are taken over
    sized, other = (
        slice_spec(c, "batching", "token_budget") for c in (config, {**config, "slo": "chat"})
    )
    assert sized.workload() == other.workload()
    by_goodput = copy.deepcopy(config)
    by_goodput["batching"]["page_size"]["criterion"] = "goodput"
    assert slice_spec(by_goodput, "batching", "page_size").workload()["slo"] == config["slo"]


def test_a_calibration_goes_with_the_format_that_it_was_for(config):
    """Pins: where the winner needed calibration, a later stage without formats could not start."""
    winner = {"quantization": "int8-awq-g64-a8", "calibration": {"num_sequences": 8}}
    spec = slice_spec(config, "kv_cache", "compression")
    spec = dataclasses.replace(spec, base={**spec.base, **winner})
    assert spec.engine_config("kv-int8").calibration == {"num_sequences": 8}
    judge = spec.judge_config()
    assert (judge.quantization, judge.calibration) == ("none", None)
    plain = dataclasses.replace(spec, candidates={"plain": {"quantization": "int8"}})
    assert plain.engine_config("plain").calibration is None
    own = {"quantization": "int4-gptq-g64", "calibration": {"num_sequences": 4}}
    other = dataclasses.replace(spec, shared={"quantization": "none"}, candidates={"own": own})
    assert other.engine_config("own").calibration == {"num_sequences": 4}
    later = spec.inherit({"quantization": "int8"}).engine_config("kv-int8")
    assert (later.quantization, later.calibration) == ("int8", None)
