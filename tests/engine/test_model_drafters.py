"""Drafters that compute with a model: nothing changes but the time, or a sample's place in its law.

On a small random Llama a draft model with the same weights and some noise is right now and then,
one with other weights hardly ever; the head has learned from a few texts of that Llama.
"""

from __future__ import annotations

import dataclasses
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from infopt import LLM, EngineConfig, SamplingParams
from infopt.errors import ConfigError
from infopt.outputs import CompletionOutput, RequestOutput

GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
NOISE = 0.05
LENGTHS = (1, 3, 4, 9, 17, 30, 31, 40)

Make = Callable[..., LLM]


@pytest.fixture(scope="session")
def noisy_dir(
    tiny_model_dir: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """Factory of a family's checkpoint with some noise on its weights."""
    made: dict[str, Path] = {}

    def make(family: str) -> Path:
        if family not in made:
            made[family] = tmp_path_factory.mktemp(f"noisy-{family}") / "model"
            shutil.copytree(tiny_model_dir(family), made[family])
            file, generator = made[family] / "model.safetensors", torch.Generator().manual_seed(0)
            weights = load_file(file)
            for name, weight in weights.items():
                noise = torch.randn(weight.shape, generator=generator)
                weights[name] = weight + NOISE * noise * weight.std()
            save_file(weights, file, metadata={"format": "pt"})
        return made[family]

    return make


@pytest.fixture(scope="session")
def head_dir(
    tiny_model_dir: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """Factory of draft heads for a family's random model, trained for a few seconds."""
    from infopt.training.head import HeadRecipe, train_head

    made: dict[str, Path] = {}

    def make(family: str) -> Path:
        if family not in made:
            config = EngineConfig(str(tiny_model_dir(family)), dtype="float32", max_model_len=256)
            recipe = HeadRecipe(minutes=1.0, num_tokens=1500, num_draft_tokens=300, max_steps=80)
            folder = tmp_path_factory.mktemp("head")
            made[family] = train_head(config, folder, recipe, show_progress=False).folder
        return made[family]

    return make


@pytest.fixture
def drafting(
    tiny_model_dir: Callable[..., Any],
    noisy_dir: Callable[[str], Path],
    head_dir: Callable[[str], Path],
    make_llm: Make,
) -> Callable[..., LLM]:
    """Factory of engines that draft: ``drafting("close", 3)``."""

    def make(kind: str = "close", length: int = 4, family: str = "llama", **options: Any) -> LLM:
        speculative = {
            "same": lambda: {"method": "draft_model", "model": str(tiny_model_dir(family))},
            "close": lambda: {"method": "draft_model", "model": str(noisy_dir(family))},
            "other": lambda: {"method": "draft_model", "model": str(tiny_model_dir(seed=9))},
            "head": lambda: {"method": "draft_head", "model": str(head_dir(family))},
            "part": lambda: {"method": "early_exit", "skip_layers": [1]},
        }[kind]()
        speculative |= {"num_speculative_tokens": length, **options.pop("speculative", {})}
        return make_llm(family, speculative=speculative, **options)

    return make


def ids(count: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(4, 320), k=count)


def prompts_of(lengths: Sequence[int]) -> list[list[int]]:
    """Random prompts; the last ones begin alike, to meet the prefix cache."""
    prompts = [ids(length, seed) for seed, length in enumerate(lengths)]
    prompts[-1][:20] = prompts[-2][:20]
    return prompts


def facts(outputs: list[RequestOutput]) -> list[Any]:
    """Everything of an output but its times."""

    def of(completion: CompletionOutput) -> Any:
        return dataclasses.replace(completion, metrics=None)

    return [([of(c) for c in o.outputs], o.prompt_logprobs, o.num_cached_tokens) for o in outputs]


def run(llm: LLM, prompts: Any, params: Any = GREEDY) -> list[RequestOutput]:
    outputs = llm.generate(prompts, params, use_tqdm=False)
    llm.engine.check_integrity()
    assert llm.engine.cache.pool.num_used == 0
    return outputs


def stats_of(llm: LLM) -> Any:
    stats = llm.engine.draft_stats
    assert stats is not None
    return stats


@pytest.fixture(scope="module")
def plain_facts(tiny_model_dir: Callable[..., Path]) -> list[Any]:
    """What the small Llama answers to some prompts without guesses."""
    options: dict[str, Any] = {"dtype": "float32", "backend": "reference", "block_size": 4}
    with LLM(str(tiny_model_dir("llama")), max_model_len=256, num_kv_pages=400, **options) as llm:
        return facts(run(llm, prompts_of(LENGTHS[::2]), GREEDY.replace(max_tokens=25, logprobs=2)))


@pytest.mark.parametrize("length", range(1, 9))
@pytest.mark.parametrize("kind", ["same", "close", "head", "part"])
def test_greedy_output_is_equal_to_the_bit(
    plain_facts: list[Any], drafting: Make, kind: str, length: int
) -> None:
    prompts = prompts_of(LENGTHS[::2])
    llm = drafting(kind, length)
    got = run(llm, prompts, GREEDY.replace(max_tokens=25, logprobs=2))
    assert facts(got) == plain_facts
    stats = stats_of(llm)
    assert stats.num_proposed > 0
    if kind == "same":
        assert stats.acceptance_rate == 1.0
        passes = stats.num_drafted_passes + stats.num_plain_passes
        assert passes == len(prompts) * -(-24 // (length + 1))  # the prompt gives the first of 25
    else:
        assert stats.num_rejections > 0


SETTINGS: dict[str, dict[str, Any]] = {
    "chunk-16": {"max_num_batched_tokens": 16, "max_num_seqs": 8},
    "no-prefix-cache": {"enable_prefix_caching": False},
    "preempt-recompute": {"num_kv_pages": 30},
    "preempt-swap": {"num_kv_pages": 30, "preemption": "swap"},
    "static-padded": {"scheduling": "static_padded", "max_num_seqs": 3},
    "best-kernels": {"backend": "auto"},
}


@pytest.mark.parametrize("kind", ["close", "head", "part"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_every_way_to_run_gives_the_same_output(
    make_llm: Make, drafting: Make, setting: str, kind: str
) -> None:
    prompts, options = prompts_of(LENGTHS), SETTINGS[setting]
    plain = make_llm(backend=options.get("backend", "reference"))
    expected = run(plain, prompts)
    llm = drafting(kind, **options)
    got = run(llm, prompts)
    assert [f[0] for f in facts(got)] == [f[0] for f in facts(expected)]
    assert stats_of(llm).num_accepted > (20 if kind == "close" else 0)
    assert (llm.stats()["preemptions"] > 0) == setting.startswith("preempt")


@pytest.mark.parametrize("kind", ["close", "part"])
@pytest.mark.parametrize("family", ["gemma3_text", "mistral"])
def test_windows_on_both_sides(make_llm: Make, drafting: Make, family: str, kind: str) -> None:
    """A window of 24 over up to 64 tokens, in the model and in what guesses for it."""
    prompts = prompts_of(LENGTHS)
    expected = run(make_llm(family), prompts)
    llm = drafting(kind, family=family)
    assert facts(run(llm, prompts)) == facts(expected)
    assert stats_of(llm).num_accepted > (20 if kind == "close" else 0)


@pytest.mark.parametrize("kind", ["close", "head"])
def test_quantized_pages_of_the_model(make_llm: Make, drafting: Make, kind: str) -> None:
    """What guesses keeps its own rows as they are; the model's output stays that of its pages."""
    pages = {"kv_cache_dtype": "int8", "kv_group_size": 16, "kv_residual": 24}
    prompts = prompts_of(LENGTHS)
    expected = run(make_llm(**pages), prompts)
    llm = drafting(kind, **pages)
    assert facts(run(llm, prompts)) == facts(expected)
    assert stats_of(llm).num_accepted > 0


def test_a_part_of_the_model_does_not_read_quantized_pages(drafting: Make) -> None:
    with pytest.raises(ConfigError, match="early_exit reads the model's own pages"):
        drafting("part", kv_cache_dtype="int8", kv_group_size=16, kv_residual=24)


SAMPLED: dict[str, SamplingParams] = {
    "temperature": SamplingParams(temperature=0.7, seed=1),
    "top-k": SamplingParams(temperature=1.3, top_k=5, seed=2),
    "top-p": SamplingParams(temperature=1.0, top_p=0.8, seed=3),
    "min-p": SamplingParams(temperature=1.0, min_p=0.1, seed=4),
    "penalties": SamplingParams(
        temperature=0.5, presence_penalty=0.7, frequency_penalty=0.4, seed=5
    ),
    "repetition": SamplingParams(temperature=0.9, repetition_penalty=1.3, seed=5),
    "bias": SamplingParams(temperature=1.0, logit_bias={9: 4.0, 17: -100.0, 30: 6.0}, seed=6),
    "min-tokens": SamplingParams(
        temperature=1.0, min_tokens=11, stop_token_ids=list(range(4, 160)), seed=7
    ),
    "stop-ids": SamplingParams(temperature=1.0, stop_token_ids=list(range(4, 30)), seed=8),
    "logprobs": SamplingParams(temperature=0.9, logprobs=4, prompt_logprobs=2, seed=9),
    "several": SamplingParams(temperature=1.1, n=3, seed=10, logprobs=0),
    "one-token": SamplingParams(temperature=0.9, max_tokens=1, seed=12),
    "two-tokens": SamplingParams(temperature=0.9, max_tokens=2, seed=13),
    "form": SamplingParams(
        temperature=1.0, seed=14, structured_outputs={"regex": "(ab|cd){3,9}x"}, max_tokens=40
    ),
    "greedy-form": SamplingParams(
        temperature=0, structured_outputs={"regex": "(ab|cd){3,9}x"}, max_tokens=40
    ),
    "greedy": SamplingParams(temperature=0, frequency_penalty=1.5, repetition_penalty=1.2),
}


def sampled_params() -> list[SamplingParams]:
    return [p if p.max_tokens != 16 else p.replace(max_tokens=24) for p in SAMPLED.values()]


@pytest.mark.parametrize("kind", ["close", "head", "part"])
def test_samples_do_not_depend_on_what_shares_the_batch(drafting: Make, kind: str) -> None:
    """Every parameter, with guesses kept and refused: the same alone, together, and again."""
    params = sampled_params()
    prompts = [ids(9, seed) for seed in range(len(params))]
    llm = drafting(kind)
    together = facts(run(llm, prompts, params))
    stats = stats_of(llm)
    assert stats.num_accepted > (40 if kind == "close" else 5)
    assert stats.num_rejections > 5
    again = drafting(kind, enable_prefix_caching=False)
    alone = [run(again, [p], [q])[0] for p, q in zip(prompts, params, strict=True)]
    for name, one, other in zip(SAMPLED, together, facts(alone), strict=True):
        assert one[0] == other[0], name


@pytest.mark.parametrize("num_kv_pages", [400, 30])
def test_coupled_samples_are_those_of_their_seeds(
    make_llm: Make, drafting: Make, num_kv_pages: int
) -> None:
    """``acceptance="equal"`` keeps the promise of drafters without probabilities."""
    params = sampled_params()
    prompts = [ids(9, seed) for seed in range(len(params))]
    expected = run(make_llm(), prompts, params)
    llm = drafting("close", num_kv_pages=num_kv_pages, speculative={"acceptance": "equal"})
    got = run(llm, prompts, params)
    for name, one, other in zip(SAMPLED, facts(expected), facts(got), strict=True):
        assert one[0] == other[0], name
    assert stats_of(llm).num_accepted > 40
    assert (llm.stats()["preemptions"] > 0) == (num_kv_pages == 30)


@pytest.mark.parametrize("name", [n for n, p in SAMPLED.items() if p.temperature])
def test_the_model_itself_is_always_right(drafting: Make, name: str) -> None:
    """Both sides process their rows alike; nothing is refused, and the keys are complete."""
    llm = drafting("same")
    params = [SAMPLED[name].replace(seed=seed) for seed in range(4)]
    run(llm, [ids(7, seed) for seed in range(4)], params)
    stats = stats_of(llm)
    assert stats.num_rejections == 0
    assert stats.num_proposed > 0 or name == "one-token" or name == "two-tokens"


LAWS = {"p": {7: 0.6, 8: 0.3, 9: 0.1}, "q": {7: 0.2, 8: 0.5, 9: 0.3}}


@pytest.mark.parametrize(
    ("params", "law"),
    [
        ({}, [0.6, 0.3, 0.1]),
        ({"top_k": 2}, [2 / 3, 1 / 3, 0.0]),
        ({"temperature": 0.5, "top_p": 0.97}, [0.8, 0.2, 0.0]),
    ],
)
def test_frequencies_are_the_models(
    drafting: Make, monkeypatch: pytest.MonkeyPatch, params: dict[str, Any], law: list[float]
) -> None:
    """The engine's own path: 1,600 tokens, chi-square below its 0.1 % quantile."""
    llm = drafting("close", max_num_seqs=32, num_kv_pages=1200, enable_prefix_caching=False)
    drafter: Any = llm.engine.scheduler.drafter
    force(monkeypatch, llm.engine.runner.model, LAWS["p"])
    force(monkeypatch, drafter._runner.model, LAWS["q"])
    sampling = SamplingParams(**({"temperature": 1.0} | params))
    asked = sampling.replace(max_tokens=80, seed=3, n=10, detokenize=False)
    outputs = run(llm, [ids(4), ids(5)], [asked, asked.replace(seed=4)])
    tokens = [t for o in outputs for c in o.outputs for t in c.token_ids]
    counts = torch.bincount(torch.tensor(tokens), minlength=320)[7:10].double()
    expected = torch.tensor(law).double() * 1600
    assert float(counts.sum()) == 1600
    assert float(counts[expected == 0].sum()) == 0
    inside = expected > 0
    assert float(((counts - expected)[inside] ** 2 / expected[inside]).sum()) < 13.8
    if not params:
        assert stats_of(llm).alpha == pytest.approx(0.6, abs=0.06)


def force(monkeypatch: pytest.MonkeyPatch, model: Any, law: dict[int, float]) -> None:
    """Make a model give the same distribution everywhere."""

    def logits(hidden: torch.Tensor) -> torch.Tensor:
        row = torch.full((320,), -1e9)
        for token, probability in law.items():
            row[token] = torch.tensor(probability).log()
        return row.expand(hidden.shape[0], -1).clone()

    monkeypatch.setattr(model, "logits", logits)


@pytest.mark.parametrize("include", [True, False])
def test_a_stop_string_inside_an_accepted_run_ends_the_output(
    make_llm: Make, drafting: Make, include: bool
) -> None:
    params = GREEDY.replace(include_stop_str_in_output=include, logprobs=1)
    (whole,) = run(make_llm(), [ids(11)], params)
    text = whole.outputs[0].text
    llm = drafting("same", 8)
    for at in range(2, min(len(text), 20), 4):
        stopping = params.replace(stop=[text[at : at + 2]])
        (expected,) = run(make_llm(), [ids(11)], stopping)
        assert facts(run(llm, [ids(11)], stopping))[0][0] == facts([expected])[0][0]
        assert expected.outputs[0].finish_reason == "stop"


def test_forms_are_where_they_were_after_drafting(drafting: Make) -> None:
    """Guesses move a form on and back; half of the texts are ended in between."""
    params = SAMPLED["form"].replace(max_tokens=60)
    llm = drafting("other", 6)
    outputs = run(llm, [ids(5, seed) for seed in range(6)], [params] * 6)
    for output in outputs:
        assert output.outputs[0].finish_reason == "stop"
        assert set(output.outputs[0].text[:-1]) <= set("abcd")
        assert output.outputs[0].text.endswith("x")
    assert stats_of(llm).num_rejections > 0


def test_a_prefix_that_is_cached_is_not_computed_again(
    make_llm: Make, drafting: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two turns of a conversation: the draft model reads the first one's pages, too."""
    first = run(make_llm(), [ids(20)], GREEDY)
    turn = [*ids(20), *first[0].outputs[0].token_ids, *ids(3, 5)]
    expected = run(make_llm(), [turn])
    for caching in (True, False):
        llm = drafting("same", enable_prefix_caching=caching)
        run(llm, [ids(20)])
        drafter: Any = llm.engine.scheduler.drafter
        seen: list[int] = []
        real = drafter._runner.hidden

        def hidden(ctx: Any, real: Any = real, seen: list[int] = seen) -> torch.Tensor:
            seen.append(ctx.num_tokens)
            return real(ctx)

        monkeypatch.setattr(drafter._runner, "hidden", hidden)
        assert facts(run(llm, [turn]))[0][0] == facts(expected)[0][0]
        assert (max(seen) < 20) == caching
        assert stats_of(llm).acceptance_rate == 1.0


def test_memory_is_one_budget(make_llm: Make, drafting: Make) -> None:
    """Pages of the draft model are taken from those of the model, token for token."""
    options = {"num_kv_pages": None, "kv_cache_memory_gib": 0.0005, "max_num_seqs": 32}
    plain, llm = make_llm(**options), drafting("same", **options)
    alone, both = plain.stats(), llm.stats()
    draft = both["drafter"]
    assert draft["kv_pool_bytes"] > 0
    budget = 0.0005 * 2**30
    page = both["memory"]["page_bytes"]
    used = both["num_kv_pages"] * page + draft["num_kv_pages"] * page
    assert budget - 2 * page < used <= budget
    assert both["num_kv_pages"] == draft["num_kv_pages"]
    assert both["num_kv_pages"] == pytest.approx(alone["num_kv_pages"] / 2, abs=1)
    assert alone["drafter"] is None
    run(llm, prompts_of(LENGTHS))


def test_a_draft_model_with_a_shorter_context_stops_guessing(
    make_llm: Make, drafting: Make, tiny_model_dir: Callable[..., Any]
) -> None:
    expected = run(make_llm(), [ids(20)], GREEDY.replace(max_tokens=40))
    short = tiny_model_dir("llama", max_position_embeddings=32)
    llm = drafting("same", speculative={"model": str(short)})
    assert facts(run(llm, [ids(20)], GREEDY.replace(max_tokens=40))) == facts(expected)
    stats = stats_of(llm)
    assert stats.num_accepted > 4
    assert stats.num_plain_passes > 20


class BoomError(Exception):
    """A failure while guesses are made."""


def test_a_failing_draft_costs_nobody_anything(
    make_llm: Make, drafting: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forms, pages and outputs go on where they were."""
    params = [GREEDY, SAMPLED["greedy-form"], GREEDY]
    prompts = [ids(6, seed) for seed in range(3)]
    expected = run(make_llm(), prompts, params)
    llm = drafting("same")
    drafter: Any = llm.engine.scheduler.drafter
    real, calls = drafter._runner.hidden, iter(range(10**6))

    def hidden(ctx: Any) -> torch.Tensor:
        if next(calls) == 6:
            raise BoomError
        return real(ctx)

    monkeypatch.setattr(drafter._runner, "hidden", hidden)
    done: dict[str, RequestOutput] = {}
    num_failures = 0
    with llm._requests(prompts, params) as request_ids:
        while llm.engine.has_unfinished:
            try:
                done |= {o.request_id: o for o in llm.engine.step() if o.finished}
            except BoomError:
                num_failures += 1
                llm.engine.check_integrity()
    assert num_failures == 1
    got = [done[request_id] for request_id in request_ids]
    assert [f[0] for f in facts(got)] == [f[0] for f in facts(expected)]


def test_aborted_outputs_are_forgotten(drafting: Make) -> None:
    llm = drafting("same")
    for i in range(3):
        llm.engine.add_request(str(i), ids(6, i), GREEDY)
    for _ in range(3):
        llm.engine.step()
    llm.engine.abort_all()
    llm.engine.check_integrity()
    drafter: Any = llm.engine.scheduler.drafter
    assert drafter.texts.num_texts == 0
    llm.engine.reset_prefix_cache()
    assert drafter.texts.cache.pool.num_free == drafter.texts.cache.pool.num_pages


def test_the_shipped_pair() -> None:
    """The trained model and its draft model, on text: equal output, and many guesses kept."""
    prompts = ["def main():\n    ", "The import system", "class Node:\n    def __init__"]
    common: dict[str, Any] = {"dtype": "float32", "max_model_len": 256, "kv_cache_memory_gib": 0.05}
    params = GREEDY.replace(max_tokens=32)
    with LLM("tiny-dense", **common) as llm:
        expected = facts(run(llm, prompts, params))
    speculative = {"method": "draft_model", "model": "tiny-draft", "num_speculative_tokens": 3}
    with LLM("tiny-dense", speculative=speculative, check_integrity=True, **common) as llm:
        assert facts(run(llm, prompts, params)) == expected
        assert stats_of(llm).alpha > 0.3


def test_auto_asks_a_draft_model_only_now_and_then(
    make_llm: Make, noisy_dir: Callable[[str], Path]
) -> None:
    """It falls behind while it is not asked, and goes on from where the text is."""
    rng = random.Random(3)
    prompts = [rng.choices(range(4, 320), k=length) for length in LENGTHS]
    params = GREEDY.replace(max_tokens=40)
    expected = make_llm().generate(prompts, params, use_tqdm=False)
    drafter = {"method": "draft_model", "model": str(noisy_dir("llama"))}
    llm = make_llm(speculative={"method": "auto", "drafter": drafter, "probe_share": 0.4})
    got = llm.generate(prompts, params, use_tqdm=False)
    assert [o.outputs[0].token_ids for o in got] == [o.outputs[0].token_ids for o in expected]
    report = llm.stats()["speculative"]
    decided = report["controller"]["decisions"]
    assert decided["learn"] > 0
    assert decided["probe"] + decided["on"] > 0
    assert decided["off"] + decided["learn"] > 0, "some steps ask nobody"
    assert report["proposed_tokens"] > 0
    llm.engine.scheduler.check_integrity()
