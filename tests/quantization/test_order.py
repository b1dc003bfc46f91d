"""What schemes lose on weights that were never quantized: the order that theory expects.

Asserted on the float-trained tiny model alone. Models whose stored weights are 4-bit already can
turn the order around, and small differences of task scores prove nothing.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from infopt import LLM
from infopt.evals.perplexity import perplexity
from infopt.evals.windows import corpus_windows

_TOKENS = 8192


@pytest.fixture(scope="module")
def perplexity_of(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """Geometric mean of the perplexities on held-out docs and code, by scheme."""
    found: dict[str, float] = {}
    patch = pytest.MonkeyPatch()
    patch.setenv("INFOPT_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    for scheme in (
        "none",
        "int8",
        "int4-awq-g64",
        "int4-gptq-g64",
        "int4-rtn-g64",
        "int4-rtn-channel",
        "int3-rtn-g64",
        "int2-rtn-g64",
    ):
        with LLM("tiny-dense", dtype="float32", quantization=scheme, max_model_len=512) as llm:
            logs = [
                math.log(
                    perplexity(
                        llm,
                        corpus_windows(llm, kind, context=512, max_tokens=_TOKENS).windows,
                        use_tqdm=False,
                    ).token_perplexity
                )
                for kind in ("docs", "code")
            ]
        found[scheme] = math.exp(sum(logs) / len(logs))
    patch.undo()
    return found


def test_eight_bits_are_next_to_lossless(perplexity_of: dict[str, float]) -> None:
    assert perplexity_of["int8"] / perplexity_of["none"] == pytest.approx(1.0, abs=0.005)


@pytest.mark.parametrize(
    ("better", "worse", "at_least"),
    [
        ("int8", "int4-awq-g64", 1.005),
        ("int8", "int4-gptq-g64", 1.002),
        ("int4-awq-g64", "int4-rtn-g64", 1.0),
        ("int4-gptq-g64", "int4-rtn-g64", 1.0),
        ("int4-rtn-g64", "int4-rtn-channel", 1.0),
        ("int4-rtn-channel", "int3-rtn-g64", 1.05),
        ("int3-rtn-g64", "int2-rtn-g64", 1.5),
    ],
)
def test_the_order_of_schemes(
    perplexity_of: dict[str, float], better: str, worse: str, at_least: float
) -> None:
    assert perplexity_of[worse] / perplexity_of[better] > at_least


def test_gptq_is_not_worse_than_rounding_on_any_layer(tmp_path: Path) -> None:
    """Layers where it was are marked, and the rounded codes are what is stored."""
    from infopt.models.checkpoint import open_checkpoint
    from infopt.models.registry import resolve_model
    from infopt.quantization.calibration import CalibrationSet
    from infopt.quantization.layerwise import LayerwiseQuantizer
    from infopt.quantization.names import parse

    errors: dict[str, list[float]] = {}
    with open_checkpoint(resolve_model("tiny-dense")) as checkpoint:
        ids = CalibrationSet(num_sequences=8, length=128).token_ids(
            checkpoint.config, checkpoint.tokenizer()
        )
        for name in ("int4-gptq-g64", "int4-awq-g64", "int4-rtn-g64"):
            recipe = parse(name)
            assert recipe is not None
            # The first layer: the others see inputs that depend on the method.
            made = LayerwiseQuantizer(checkpoint, recipe, ids).layer(0)
            errors[name] = [r.relative_error or 0.0 for r in made.reports]
    for gptq, rtn in zip(errors["int4-gptq-g64"], errors["int4-rtn-g64"], strict=True):
        assert gptq <= rtn
    assert sum(errors["int4-awq-g64"]) < sum(errors["int4-rtn-g64"])
