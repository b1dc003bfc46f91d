"""The reference rotation and page write."""

from __future__ import annotations

import pytest
import torch

from infopt.ops.context import KVPages
from infopt.ops.rms_norm import rms_norm
from infopt.ops.rotary import HeadNorms, rotary_and_write, rotate

NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, BLOCK = 4, 2, 16, 4


def _inputs(num_tokens: int):
    torch.manual_seed(0)
    qkv = torch.randn(num_tokens, (NUM_HEADS + 2 * NUM_KV_HEADS) * HEAD_DIM)
    angles = torch.rand(num_tokens, HEAD_DIM // 2) * 6
    pages = KVPages(*(torch.zeros(6, NUM_KV_HEADS, BLOCK, HEAD_DIM) for _ in range(2)))
    return qkv, angles, pages


def _rotate_complex(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """The same rotation as multiplication of complex numbers, in float64."""
    a, b = x.double().chunk(2, -1)
    turned = torch.complex(a, b) * torch.polar(torch.ones(()).double(), angles.double()).unsqueeze(
        1
    )
    return torch.cat([turned.real, turned.imag], -1)


@pytest.mark.parametrize("with_norms", [False, True])
def test_queries_keys_and_values(with_norms):
    qkv, angles, pages = _inputs(7)
    slots = torch.tensor([5, 22, 4, 9, 8, 17, 23])
    norms = HeadNorms(torch.randn(16), torch.randn(16), 1e-6) if with_norms else None
    queries = rotary_and_write(qkv, angles.cos(), angles.sin(), pages, slots, norms)
    q, k, v = qkv.view(7, -1, HEAD_DIM).split([NUM_HEADS, NUM_KV_HEADS, NUM_KV_HEADS], dim=1)
    if norms is not None:
        q, k = rms_norm(q, norms.query, 1e-6), rms_norm(k, norms.key, 1e-6)
    assert torch.allclose(queries.double(), _rotate_complex(q, angles), atol=1e-6)
    keys = pages.keys[slots // BLOCK, :, slots % BLOCK]
    assert torch.allclose(keys.double(), _rotate_complex(k, angles), atol=1e-6)
    assert torch.equal(pages.values[slots // BLOCK, :, slots % BLOCK], v)


def test_other_slots_are_untouched():
    qkv, angles, pages = _inputs(2)
    for part in pages[:2]:
        part.fill_(7.0)
    rotary_and_write(qkv, angles.cos(), angles.sin(), pages, torch.tensor([6, 13]))
    flat = pages.keys.transpose(1, 2).reshape(-1, NUM_KV_HEADS, HEAD_DIM)
    untouched = [slot for slot in range(24) if slot not in (6, 13)]
    assert (flat[untouched] == 7.0).all()


def test_scores_depend_on_distance_only():
    """Rotating query and key by the same extra angle leaves their product."""
    q, k = torch.randn(2, 1, 1, HEAD_DIM).double()
    frequencies = torch.rand(HEAD_DIM // 2).double()

    def score(i: int, j: int) -> float:
        turned = [
            rotate(x, (p * frequencies).cos()[None], (p * frequencies).sin()[None])
            for x, p in ((q, i), (k, j))
        ]
        return float((turned[0] * turned[1]).sum())

    assert score(9, 4) == pytest.approx(score(105, 100), abs=1e-9)
    assert score(9, 4) != pytest.approx(score(9, 3), abs=1e-6)
