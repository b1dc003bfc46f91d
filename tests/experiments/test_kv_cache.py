"""Stage kv_cache: what its probes add to a record, and what is refused before anything runs."""

import pytest

from infopt.errors import ConfigError
from infopt.evals.long_text import LongText, passkey_lengths, same_answers
from infopt.evals.tasks.outcome import ItemOutcome, TaskResult
from infopt.experiments import kv_cache, select
from infopt.experiments.config import complete_config
from infopt.experiments.kv_cache import task_losses, task_samples
from infopt.experiments.measures import CapacityOptions, CurveOptions, read_options
from infopt.experiments.random_model import write_random_model
from infopt.experiments.select_spec import select_spec
from infopt.experiments.slices import is_left_out
from infopt.experiments.spec import MEASURES, SliceSpec, slice_names, slice_spec
from infopt.results import RunRecord, record_path

LONG_TEXT = {
    "context": 160,
    "num_scored": 6,
    "num_windows": 2,
    "passkeys": 3,
    "passkey_lengths": [256, 300],
    "dialogues": 1,
}
PROMPTS = {"kind": "long-context", "num_requests": 2, "prompt_tokens": 100, "output_tokens": 3}
TURNS = {
    "kind": "multi-turn",
    "num_conversations": 2,
    "num_turns": 2,
    "user_tokens": 30,
    "answer_tokens": 10,
    "output_tokens": 2,
}


@pytest.fixture(autouse=True)
def on_this_machine(fixed_machine, tmp_path, monkeypatch):
    monkeypatch.setattr(kv_cache, "machine_peaks", lambda llm: fixed_machine)
    monkeypatch.setattr("infopt.experiments.devices._default_lock_dir", lambda: tmp_path / "locks")


@pytest.fixture
def run(tmp_path, make_spec):
    """Run a slice on the pipeline's random model and return its records by candidate."""

    def run(candidates, workload=PROMPTS, shared=None, **options) -> dict[str, RunRecord]:
        spec = make_spec(
            stage="kv_cache",
            name="question",
            model=str(write_random_model(tmp_path / "model")),
            reference=next(iter(candidates)),
            base={"max_model_len": 2048, "num_kv_pages": 160, "dtype": "float32"},
            shared={"max_num_seqs": 4} | (shared or {}),
            candidates=candidates,
            workloads={"load": workload},
            repeats=1,
            options=options,
        )
        kv_cache.run(SliceSpec.from_json(spec.to_json()), tmp_path)
        return {
            slug: RunRecord.read(record_path("kv_cache", spec.record_slug(slug), tmp_path))
            for slug in candidates
        }

    return run


def test_quality_behind_long_prompts_counts_from_the_reference(run):
    streaming = {"preemption": "swap", "kv_eviction": {"method": "streaming", "budget": 0.25}}
    records = run(
        {"auto": {}, "same": {"block_size": 8}, "streaming": streaming}, long_text=LONG_TEXT
    )
    quality = {slug: record.quality for slug, record in records.items()}
    assert {q["protocol"]["tier"] for q in quality.values()} == {"long"}
    assert quality["auto"]["kl_mean"] == quality["same"]["kl_mean"] == 0
    assert quality["streaming"]["kl_mean"] > 0, "decoding sees what was evicted"
    assert quality["auto"]["tasks"]["passkey"]["n"] == 3
    samples = records["streaming"].samples
    assert samples["passkey.length"] == [256, 300, 256]
    assert len(samples["passkey.correct"]) == len(samples["passkey.depth"]) == 3
    assert samples["dialogue.turn"] == [0]
    extra = {slug: record.extra for slug, record in records.items()}
    assert extra["same"]["passkey_same_answers"] == extra["same"]["dialogue_same_answers"] == 1
    assert "passkey_p_value" not in extra["auto"]
    assert extra["streaming"]["kv_rows_share"] == 0.25
    assert extra["streaming"]["kv_bytes_kept_per_token"] < extra["auto"]["kv_bytes_kept_per_token"]
    assert records["streaming"].memory["freed_bytes"] > 0
    assert records["auto"].memory["freed_bytes"] is None


def test_capacity_and_time_over_the_context_are_measured_on_demand(run):
    shared = {"max_num_seqs": 24, "max_num_batched_tokens": 256, "preemption": "swap"}
    snapkv = {"kv_eviction": {"method": "snapkv", "budget": 0.25, "window": 8}}
    records = run(
        {"auto": {}, "snapkv": snapkv},
        shared=shared,
        capacity={"context_tokens": 320},
        context_curve={"num_seqs": 2, "contexts": [16, 64, 4000], "budget_s": 0.01},
    )
    auto, evicting = (records[slug].extra for slug in ("auto", "snapkv"))
    assert auto["capacity_num_seqs"] == auto["capacity_predicted_seqs"]
    assert evicting["capacity_num_seqs"] > 2 * auto["capacity_num_seqs"]
    assert abs(evicting["capacity_num_seqs"] - evicting["capacity_predicted_seqs"]) <= 1
    samples = records["auto"].samples
    assert samples["context.num_cached"] == [16, 64]  # the last is beyond the model's limit
    assert samples["context.kv_bytes"][1] == 4 * samples["context.kv_bytes"][0]
    assert all(s > 0 for s in samples["context.measured_s"])
    assert records["auto"].quality is None


def test_sharing_is_counted_request_by_request(run):
    caches = {
        "cache-off": {"enable_prefix_caching": False},
        "cache-on": {"enable_prefix_caching": True},
    }
    records = run(caches, workload=TURNS, shared={"max_num_seqs": 1}, sharing=True)
    off, on = (records[slug] for slug in caches)
    assert off.extra["sharing_hit_share"] == 0
    assert on.extra["sharing_hit_share"] == on.extra["sharing_best_hit_share"] > 0
    assert 0 < on.extra["sharing_saved_flops_share"] < 1
    assert on.samples["sharing.cached_tokens"] == on.samples["sharing.shareable_tokens"]
    # everything fits, so every full page of every prompt can still be found
    pages = [n // 16 for n in on.samples["sharing.prompt_tokens"]]
    assert on.samples["sharing.kept_pages"] == pages
    assert off.samples["sharing.kept_pages"] == [0] * 4


def test_a_compression_that_the_model_does_not_allow_is_left_out(
    make_spec, tmp_path, tiny_model_dir
):
    """A model of window layers alone has nothing to evict; a misspelt press is an error."""
    spec = make_spec(
        stage="kv_cache",
        name="question",
        model=str(tiny_model_dir("mistral")),
        reference="auto",
        candidates={
            "auto": {},
            "knorm": {"kv_eviction": {"method": "knorm", "budget": 0.5}, "preemption": "swap"},
        },
        repeats=1,
    )
    manifest = kv_cache.run(spec, tmp_path)
    assert manifest["records"] == ["question.auto"]
    assert "this model has none" in manifest["left_out"]["knorm"]
    assert not is_left_out(ConfigError("x", field="kv_group_size"))


def test_a_misspelt_press_is_an_error_before_anything_runs(schema):
    entry = {"slug": "x", "engine": {"kv_eviction": {"method": "snapvk", "budget": 0.5}}}
    with pytest.raises(ConfigError, match="snapkv"):
        complete_config(
            {"kv_cache": {"compression": {"reference": "x", "candidates": [entry]}}}, schema
        )


def outcome(name, *, correct, prediction="x"):
    return ItemOutcome(name, correct, prediction, "y")


def test_items_become_samples_and_losses():
    base = TaskResult(
        "passkey", "p", tuple(outcome(f"{i}/length=8/depth=0.5", correct=True) for i in range(6))
    )
    worse = TaskResult(
        "passkey",
        "p",
        tuple(
            outcome(f"{i}/length=8/depth=0.5", correct=i == 0, prediction="xz"[i > 2])
            for i in range(6)
        ),
    )
    assert task_samples({"passkey": worse}) == {
        "passkey.correct": [1.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        "passkey.length": [8.0] * 6,
        "passkey.depth": [0.5] * 6,
    }
    losses = task_losses({"passkey": base}, {"passkey": worse})
    assert losses["passkey_num_lost"] == 5
    assert losses["passkey_num_gained"] == 0
    assert losses["passkey_p_value"] == pytest.approx(2 / 2**5)
    assert losses["passkey_same_answers"] == same_answers(base, worse) == 0.5


def test_lengths_beyond_the_limit_are_left_out(make_spec, tmp_path):
    from infopt import LLM

    with LLM(str(write_random_model(tmp_path / "model")), max_model_len=400) as llm:
        assert passkey_lengths(llm, LongText(passkey_lengths=(256, 390, 512))) == (256, 390)


@pytest.mark.parametrize(
    ("entry", "named"),
    [
        ({"long_text": {"contexts": 1}}, "context"),
        ({"capacity": {}}, "context_tokens"),
        ({"capacity": {"context_tokens": 0}}, "context_tokens"),
        ({"context_curve": {"num_seqs": 1, "contexts": [4], "budget_s": 1}}, "contexts"),
        ({"context_curve": {"num_seqs": 1, "contexts": [4, 2], "budget_s": 1}}, "contexts"),
        ({"context_curve": {"num_seqs": 1, "contexts": [2, 4], "budget_s": 0}}, "budget_s"),
    ],
)
def test_impossible_measures_are_refused_before_anything_runs(schema, entry, named):
    with pytest.raises(ConfigError, match=named):
        complete_config({"kv_cache": {"compression": entry}}, schema)


def test_options_are_read_or_named():
    assert read_options(CapacityOptions, {"context_tokens": 3}, "capacity").context_tokens == 3
    curve = read_options(CurveOptions, {"num_seqs": 1, "contexts": [1, 2], "budget_s": 1}, "curve")
    assert curve.contexts == (1, 2)
    with pytest.raises(ConfigError, match="num_seq"):
        read_options(CurveOptions, {"num_seq": 1}, "curve")


def test_the_default_slices_are_valid_and_one_decides(config):
    names = slice_names(config, "kv_cache")
    specs = {name: slice_spec(config, "kv_cache", name) for name in names}
    assert [name for name, spec in specs.items() if spec.decides] == ["compression"]
    assert specs["compression"].options["long_text"]["passkeys"] >= 40
    # Pins: the floor held only where a quality tier was named, so what lost all was chosen
    assert [name for name, spec in specs.items() if spec.measures_quality] == ["compression"]
    for spec in specs.values():
        assert set(spec.options) <= set(MEASURES)
        assert spec.workload().items() >= dict(spec.options).items()
        for slug in spec.candidates:
            spec.engine_config(slug)


def test_a_compressed_cache_is_judged_again_among_the_finalists(config):
    spec = select_spec(config, "finalists")

    def chosen(engine):
        entry = {"engine": engine, "reference_engine": {"kv_cache_dtype": "auto"}}
        return [{"slices": {"compression": entry}}]

    assert select.finalists(spec, chosen({"kv_cache_dtype": "auto"}), [], 1.0).quality_tier is None
    assert (
        select.finalists(spec, chosen({"kv_cache_dtype": "int8"}), [], 1.0).quality_tier == "screen"
    )
    evicting = {"kv_eviction": {"method": "snapkv", "budget": 0.5}}
    assert select.finalists(spec, chosen(evicting), [], 1.0).quality_tier == "screen"
