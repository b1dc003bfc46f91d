"""Moving kept rows of a cache together, in Triton: exactly what indexing does."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infopt.kernels.triton_ops import references
from infopt.kernels.triton_ops.common import KernelArgumentError
from infopt.kernels.triton_ops.compact import compact

few = settings(
    max_examples=5,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@few
@given(
    heads=st.integers(1, 3),
    block=st.sampled_from([1, 5, 16]),
    head_dim=st.sampled_from([8, 24, 64]),
    kept=st.integers(0, 40),
)
def test_equals_reference(heads, block, head_dim, kept, dtype, device, make_pages):
    """Source and target overlap: the rows move to the front of their own pages."""
    torch.manual_seed(kept)
    num_pages = 50 // block + 1
    keys, values = make_pages(num_pages, heads, block, head_dim, dtype)
    keys.copy_(torch.randn_like(keys))
    values.copy_(torch.randn_like(values))
    slots = torch.stack([torch.randperm(num_pages * block)[:kept] for _ in range(heads)])
    source = slots.sort(dim=1).values.to(device)
    target = torch.arange(kept, device=device)
    expected = keys.clone(), values.clone()
    references.compact(*expected, source, target)
    compact(keys, values, source, target)
    assert torch.equal(keys, expected[0])
    assert torch.equal(values, expected[1])


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (torch.zeros(2, 3, dtype=torch.int64), torch.zeros(4, dtype=torch.int64), "target must"),
        (torch.zeros(2, 3, dtype=torch.int32), torch.zeros(3, dtype=torch.int64), "source must"),
        (torch.zeros(1, 3, dtype=torch.int64), torch.zeros(3, dtype=torch.int64), "keys must have"),
    ],
)
def test_wrong_arguments_raise(source, target, message, device, make_pages):
    keys, values = make_pages(4, 2, 8, 16, torch.float32)
    with pytest.raises(KernelArgumentError, match=message):
        compact(keys, values, source.to(device), target.to(device))
