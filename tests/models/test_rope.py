"""Turning a rotated key back is rotating it to an earlier position."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from infopt.models.config import RopeConfig
from infopt.models.rope import rope_table, turn_table
from infopt.ops.rotary import rotate

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize("scaling", [None, YARN, LLAMA3], ids=["plain", "yarn", "llama3"])
@pytest.mark.parametrize("by", [0, 1, 37])
def test_a_key_turned_back_is_one_rotated_to_an_earlier_position(
    scaling: dict[str, Any] | None, by: int
) -> None:
    """Also where the table has a factor (YaRN): turning must not apply it again."""
    rope = RopeConfig(theta=10_000.0, scaling=scaling)
    cos, sin = rope_table(rope, 32, 200, torch.float32)
    keys = torch.randn(5, 2, 32, generator=torch.Generator().manual_seed(0))
    at = torch.tensor([40, 41, 77, 100, 199])
    turns = turn_table(rope, 32, 64)[:, by].expand(5, -1, -1).unbind(1)
    turned = rotate(rotate(keys, cos[at], sin[at]), *turns)
    expected = rotate(keys, cos[at - by], sin[at - by])
    assert (turned - expected).abs().max() < 1e-5
