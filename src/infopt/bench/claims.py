"""Measures what the documentation claims about speed, paired and with intervals.

    python -m infopt.bench.claims --out docs/measurements/claims-cpu-epyc.json

Four questions, each answered by arms that take turns in one process: decoding beside transformers'
own ``generate`` on the same weights, type and prompts (1, 8 and 32 sequences); continuous beside
static batching on heavy-tailed answers; time to first token with a cold and a warm 1,000-token
prefix; pages wasted at a mean length of 300 tokens. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from infopt import __version__
from infopt.bench.closed import run_batch
from infopt.bench.paired import PairedResult, run_paired
from infopt.bench.workloads import build_workload
from infopt.hardware import fingerprint
from infopt.llm import LLM
from infopt.models.checkpoint import open_checkpoint
from infopt.models.registry import resolve_model
from infopt.results import write_json
from infopt.sampling_params import SamplingParams

DEFAULT_MODEL = "smollm2-135m-instruct-q4_1"
PROMPT_TOKENS = 128
DECODE_TOKENS = 64
HEAVY_TAILED = {
    "kind": "synthetic",
    "num_requests": 40,
    "prompt_tokens": 32,
    "output_tokens": {"kind": "zipf", "alpha": 1.0, "min": 2, "max": 128},
}


def decode_beside_transformers(model: str, batch: int, repeats: int) -> PairedResult:
    """Compare decode rates: ``DECODE_TOKENS`` more tokens after prompts of ``PROMPT_TOKENS``.

    Both arms generate one token and then ``DECODE_TOKENS + 1``; the difference is the time of
    decoding alone.
    """
    peer = transformers_model(model)
    vocab = peer.config.vocab_size
    rng = np.random.default_rng(batch)
    ids = torch.tensor(rng.integers(5, vocab - 5, size=(batch, PROMPT_TOKENS)))
    with LLM(model, dtype="bfloat16", max_model_len=512, enable_prefix_caching=False) as llm:

        def ours(num_tokens: int) -> None:
            params = SamplingParams(
                temperature=0, max_tokens=num_tokens, ignore_eos=True, detokenize=False
            )
            llm.generate(ids.tolist(), params, use_tqdm=False)

        def theirs(num_tokens: int) -> None:
            with torch.inference_mode():
                peer.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    max_new_tokens=num_tokens,
                    min_new_tokens=num_tokens,
                    do_sample=False,
                )

        arms = {name: _decode_rate(run, batch) for name, run in _arms(ours, theirs)}
        return run_paired(arms, "transformers", repeats)


def continuous_beside_static(model: str, repeats: int) -> PairedResult:
    """Compare throughput in one engine on answers of very different lengths."""
    arms = {}
    for scheduling in ("static", "continuous"):
        llm = LLM(model, dtype="bfloat16", max_model_len=512, max_num_seqs=8, scheduling=scheduling)
        requests = build_workload(HEAVY_TAILED, tokenizer=llm.tokenizer)

        def run(llm: LLM = llm, requests: Any = requests) -> float:
            result = run_batch(llm, requests)
            return sum(t.num_output_tokens for t in result.timings) / result.duration_s

        arms[scheduling] = run
    return run_paired(arms, "static", repeats)


def warm_prefix(model: str, repeats: int, prefix_tokens: int = 1000) -> PairedResult:
    """Compare the time to first token of a prompt with a cold and a warm prefix."""
    llm = LLM(model, dtype="bfloat16", max_model_len=2048)
    rng, vocab = np.random.default_rng(1), llm.model_config.num_real_tokens
    prefix = rng.integers(5, vocab, size=prefix_tokens).tolist()
    params = SamplingParams(temperature=0, max_tokens=1, detokenize=False)

    def ttft() -> float:
        question = rng.integers(5, vocab, size=16).tolist()
        output = llm.generate([*prefix, *question], params, use_tqdm=False)[0]
        assert output.metrics.ttft_s is not None
        return output.metrics.ttft_s

    def cold() -> float:
        llm.reset_prefix_cache()
        return ttft()

    def warm() -> float:
        ttft()
        return ttft()

    return run_paired({"cold": cold, "warm": warm}, "cold", repeats, higher_is_better=False)


def page_waste(model: str) -> dict[str, float]:
    """Return the unused share of page slots over a run with lengths around 300 tokens."""
    workload = {
        "kind": "synthetic",
        "num_requests": 32,
        "prompt_tokens": {"kind": "uniform", "min": 150, "max": 400},
        "output_tokens": 50,
    }
    with LLM(model, dtype="bfloat16", max_model_len=1024, enable_prefix_caching=False) as llm:
        result = run_batch(llm, build_workload(workload, tokenizer=llm.tokenizer))
        steps = [s for s in result.step_log if s.num_pages_used]
        slots = sum(s.num_pages_used for s in steps) * llm.config.block_size
        stored = sum(s.num_tokens_in_pages for s in steps)
        mean_length = stored / sum(s.num_running for s in steps if s.num_running)
        return {"waste_share": 1 - stored / slots, "mean_tokens_per_sequence": mean_length}


def main() -> None:
    """Measure what is asked for and write it into one JSON file, part by part."""
    parser = argparse.ArgumentParser(
        description="Measures what the documentation claims about speed."
    )
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument(
        "--only", choices=[*_PARTS], action="append", help="measure this part alone"
    )
    parser.add_argument("--out", type=Path, default=Path("claims-cpu.json"))
    options = parser.parse_args()
    report = json.loads(options.out.read_text()) if options.only and options.out.exists() else {}
    report |= {
        "date": datetime.now(UTC).date().isoformat(),
        "infopt": __version__,
        "model": options.model,
        "hardware": fingerprint(),
    }
    for name in options.only or _PARTS:
        report[name] = _PARTS[name](options.model, options.repeats)
        write_json(options.out, report)


def _arms(
    ours: Callable[[int], None], theirs: Callable[[int], None]
) -> list[tuple[str, Callable[[int], None]]]:
    return [("transformers", theirs), ("infopt", ours)]


def _decode_rate(run: Callable[[int], None], batch: int) -> Callable[[], float]:
    def rate() -> float:
        start = time.perf_counter()
        run(1)
        middle = time.perf_counter()
        run(DECODE_TOKENS + 1)
        end = time.perf_counter()
        return batch * DECODE_TOKENS / ((end - middle) - (middle - start))

    return rate


def transformers_model(model: str) -> Any:
    """Return the peer with plain bfloat16 weights (a GGUF file would stay packed, and slower)."""
    from transformers import AutoConfig, AutoModelForCausalLM

    resolved = resolve_model(model)
    if resolved.format == "safetensors":
        peer = AutoModelForCausalLM.from_pretrained(resolved.path, dtype=torch.bfloat16)
    else:
        config = AutoConfig.from_pretrained(resolved.path.parent, gguf_file=resolved.path.name)
        vars(config).pop("quantization_config", None)  # else weights would stay packed
        peer = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        with open_checkpoint(resolved) as checkpoint:
            weights = {name: checkpoint.get(name, torch.bfloat16) for name in checkpoint.names()}
        missing = peer.load_state_dict(weights, strict=False).missing_keys
        assert set(missing) <= {"lm_head.weight"}, missing
        peer.tie_weights()
    peer.generation_config.pad_token_id = 0
    return peer.eval()


def _show(name: str, result: PairedResult) -> dict[str, Any]:
    """Print one line per ratio and return plain data."""
    for arm, ratio in result.ratios.items():
        print(
            f"{name}: {arm} / {result.reference} = {ratio.median:.2f} "
            f"[{ratio.low:.2f}, {ratio.high:.2f}] {ratio.verdict}; "
            f"medians {result.interval(arm).estimate:.4g} and "
            f"{result.interval(result.reference).estimate:.4g}",
            flush=True,
        )
    return result.to_dict()


def _decode(batch: int) -> Callable[[str, int], dict[str, Any]]:
    name = f"decode, {batch} sequences"
    return lambda model, n: _show(name, decode_beside_transformers(model, batch, n))


def _pages(model: str, _repeats: int) -> dict[str, float]:
    waste = page_waste(model)
    print(f"page waste {waste['waste_share']:.2%}")
    return waste


_PARTS: dict[str, Callable[[str, int], dict[str, Any]]] = {
    "decode_1": _decode(1),
    "decode_8": _decode(8),
    "decode_32": _decode(32),
    "continuous": lambda model, n: _show("continuous", continuous_beside_static(model, n)),
    "warm_prefix": lambda model, n: _show("warm prefix TTFT", warm_prefix(model, n)),
    "pages": _pages,
}


if __name__ == "__main__":
    main()
