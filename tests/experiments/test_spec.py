"""Specifications of slices: everything that decides numbers, the same text each time."""

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from infopt.errors import ConfigError
from infopt.experiments.select_spec import select_spec
from infopt.experiments.spec import (
    MAX_NAME_BYTES,
    SliceSpec,
    model_name,
    short_name,
    slice_names,
    slice_spec,
)


def test_a_specification_survives_json(config):
    for stage in ("baseline", "batching"):
        for name in slice_names(config, stage):
            spec = slice_spec(config, stage, name)
            assert SliceSpec.from_json(spec.to_json()) == spec
    assert SliceSpec.from_json(select_spec(config, "validation").to_json()).seeds[:2] == (
        1001,
        1002,
    )


def test_candidates_keep_their_order(make_spec):
    """Sorted by name, page-16 would stand before page-8 in every plot."""
    spec = make_spec(candidates={f"page-{n}": {"block_size": n} for n in (8, 16, 4)})
    assert list(SliceSpec.from_json(spec.to_json()).candidates) == ["page-8", "page-16", "page-4"]


def test_an_unknown_key_of_a_specification_is_an_error(make_spec):
    values = json.loads(make_spec().to_json()) | {"repeat": 1}
    with pytest.raises(ConfigError, match=r"'repeat'.*'repeats'"):
        SliceSpec.from_json(json.dumps(values))


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


def test_options_of_a_candidate_win_over_the_slice_and_that_over_the_pipeline(config):
    config["engine"] = {"max_num_seqs": 2, "block_size": 8, "max_model_len": 64}
    spec = slice_spec(config, "batching", "scheduling")  # the slice sets max_num_seqs to 8
    inherited = spec.inherit({"dtype": "float32", "block_size": 32})
    engine = inherited.engine_config("static", num_threads=1)
    assert (engine.max_num_seqs, engine.scheduling) == (4, "static")
    assert (engine.dtype, engine.block_size, engine.max_model_len) == ("float32", 32, 64)
    assert engine.num_threads == 1
    assert spec.base["block_size"] == 8  # the original is left alone


def test_a_change_of_one_slice_changes_that_slice_only(config):
    before = {n: slice_spec(config, "batching", n).to_json() for n in config["batching"]}
    config["batching"]["page_size"]["candidates"][0]["engine"] = {"block_size": 4}
    after = {n: slice_spec(config, "batching", n).to_json() for n in config["batching"]}
    assert [n for n in before if before[n] != after[n]] == ["page_size"]


def test_an_unknown_slice_is_named(config):
    with pytest.raises(ConfigError, match=r"'page_sise'.*'page_size'"):
        slice_spec(config, "batching", "page_sise")


def test_long_names_stay_below_the_limit_of_file_names():
    """Pins: a file name of more than 255 bytes made a job fail after it had succeeded."""
    long = [f"a-very-long-parameter-name-{i}" for i in range(12)]
    first, second = short_name("-".join(long)), short_name("-".join([*long[:-1], "other"]))
    assert first != second
    assert all(len(name.encode()) <= MAX_NAME_BYTES for name in (first, second))
    assert short_name("page_size.page-8") == "page_size.page-8"


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
    assert carries == {"batching.max_num_seqs", "batching.token_budget", "serving.load"}
    # limits only choose among what was measured: the records of these are taken over
    sized, other = (
        slice_spec(c, "batching", "max_num_seqs") for c in (config, {**config, "slo": "chat"})
    )
    assert sized.workload() == other.workload()
    by_goodput = copy.deepcopy(config)
    by_goodput["batching"]["page_size"]["criterion"] = "goodput"
    assert slice_spec(by_goodput, "batching", "page_size").workload()["slo"] == config["slo"]
