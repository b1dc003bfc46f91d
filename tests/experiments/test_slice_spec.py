"""`SliceSpec`: its text, its candidates, and the names of its records."""

import json

import pytest

from infopt.errors import ConfigError
from infopt.experiments.select_spec import select_spec
from infopt.experiments.slice_spec import MAX_NAME_BYTES, SliceSpec, short_name
from infopt.experiments.spec import slice_names, slice_spec


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


def test_options_of_a_candidate_win_over_the_slice_and_that_over_the_pipeline(config):
    config["engine"] = {"max_num_seqs": 2, "block_size": 8, "max_model_len": 64}
    spec = slice_spec(config, "batching", "scheduling")  # the slice sets max_num_seqs to 8
    inherited = spec.inherit({"dtype": "float32", "block_size": 32})
    engine = inherited.engine_config("static", num_threads=1)
    assert (engine.max_num_seqs, engine.scheduling) == (4, "static")
    assert (engine.dtype, engine.block_size, engine.max_model_len) == ("float32", 32, 64)
    assert engine.num_threads == 1
    assert spec.base["block_size"] == 8  # the original is left alone


def test_long_names_stay_below_the_limit_of_file_names():
    """Pins: a file name of more than 255 bytes made a job fail after it had succeeded."""
    long = [f"a-very-long-parameter-name-{i}" for i in range(12)]
    first, second = short_name("-".join(long)), short_name("-".join([*long[:-1], "other"]))
    assert first != second
    assert all(len(name.encode()) <= MAX_NAME_BYTES for name in (first, second))
    assert short_name("page_size.page-8") == "page_size.page-8"
