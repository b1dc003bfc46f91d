"""How far each engine is from the float weights: a faster one may be a coarser one."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from infopt.bench.peers.arms import Site
from infopt.bench.peers.worker import Worker
from infopt.corpus import docs_text
from infopt.llm import LLM

NUM_TOKENS = 512


def divergences(site: Site, workers: Mapping[str, Worker]) -> dict[str, Any]:
    """Return, by arm, mean KL divergence in nats and top-1 agreement over a text.

    The reference is infopt in float32 on the dequantized weights. None where an engine does not
    give its logits.
    """
    with LLM(site.model, dtype="float32", max_model_len=NUM_TOKENS + 1) as llm:
        ids = text_ids(llm)
        reference = llm.logits(ids).log_softmax(-1)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, worker in workers.items():
            path = Path(folder) / "logits.npy"
            written = worker.write_logits(ids, path)
            found[name] = compare(reference, np.load(path)) if written else None
    return found


def text_ids(llm: LLM) -> list[int]:
    """Return the tokens of a text from Python's own documentation."""
    text = docs_text("heldout")[: 8 * NUM_TOKENS]
    return llm.tokenizer.encode(text)[:NUM_TOKENS]


def compare(reference: torch.Tensor, logits: np.ndarray) -> dict[str, float]:
    """Compare logits ``(num_tokens, vocab_size)`` with reference log-probabilities."""
    other = torch.from_numpy(logits)[:, : reference.shape[1]].log_softmax(-1)
    divergence = (reference.exp() * (reference - other)).sum(-1)
    agreement = (reference.argmax(-1) == other.argmax(-1)).double()
    return {
        "mean_kl_nats": float(divergence.mean()),
        "top1_agreement": float(agreement.mean()),
        "num_tokens": len(divergence),
    }
