"""The support table, from proofs."""

from __future__ import annotations

from collections.abc import Iterable

from infopt.evals.families.proof import Proof

_HEAD = """# Supported model families

`python -m infopt.evals.families` writes this page: it builds a small random model of each family,
runs it through the engine and through transformers alone, in float32, and compares every row. A
test holds each line to what it sees.

- **Native** families run on the engine's own decoder and kernels.
- All others run through transformers' modules, with what they really cache in the engine's pages:
  keys and values, latents, index keys. That is slower: a step is one forward pass for every group
  of sequences with equally many new tokens (decodes together, pasts padded to at most twice their
  length; prefill chunks of different lengths apart), and rows are copied out of the pages.
- What the modules hand to cache or attention and pages cannot honour is refused by name. When a
  model is loaded, forty tokens run through pages and through transformers' own cache, and a
  difference is an error.
- Families whose state is not one entry per token, or whose modules have an attention of their own,
  run **unpaged**: one cache of transformers per sequence and one forward pass per sequence, no
  prefix cache, no speculation, preemption by computing again.
- Quantization of weights or pages and `backend` are for native families and refused elsewhere; CUDA
  graphs are off. Of stored codes, fp8 blocks and mxfp4 are decoded when a model is loaded, and take
  the memory of float weights; all others are refused.
- The batch-invariance contract holds for native families. Through transformers, results agree
  within rounding: the largest logit difference over the largest logit is at most 1e-4.

`yes` means that log-probabilities and best tokens agree with transformers alone, and that the
feature was exercised. Numbers are heads x width of the small model.

"""

_COLUMNS = (
    "`model_type`",
    "full-size models",
    "path",
    "cached per token",
    "batched",
    "chunked prefill",
    "prefix cache",
    "preemption",
    "notes",
)
_FEATURES = ("batched", "chunked", "prefix cache", "preemption")


def table_row(proof: Proof) -> str:
    """Return the line of one family."""
    case, facts = proof.case, proof.description
    unpaged = not facts.get("kv_is_paged", True)
    path = f"{facts['model_path']}, unpaged" if unpaged else str(facts["model_path"])
    cached = "keys and values" if facts["model_path"] == "native" else str(facts["kv_layers"])
    features = ["yes" if name in proof.agreements else "no" for name in _FEATURES]
    cells = [f"`{case.family}`", case.full_size, path, cached, *features, case.note or "-"]
    return _line(cells)


def support_page(proofs: Iterable[Proof]) -> str:
    """Return docs/support.md."""
    lines = [_line(_COLUMNS), _line("---" for _ in _COLUMNS), *map(table_row, proofs)]
    return _HEAD + "\n".join(lines) + "\n"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
