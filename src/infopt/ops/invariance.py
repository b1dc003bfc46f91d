"""Start-up self-test of the batch-invariance contract: do a row's bits depend on that row alone?

Float32 ops must give a row the same bits alone and in any batch. Whether a BLAS keeps that promise
depends on machine and version, so it is measured where it is claimed.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from infopt.ops.linear import Linear

ROW_COUNTS = (1, 2, 3, 7, 8, 15, 16, 33, 128)


def find_variant_linear(linears: Iterable[Linear], device: torch.device) -> str | None:
    """Compare each product of a few rows with the same rows of a larger product.

    Args:
        linears: Layers to test, in float32.
        device: Where they live.

    Returns:
        A description of the first violation, or None.
    """
    generator = torch.Generator().manual_seed(0)
    for linear in linears:
        most = max(ROW_COUNTS)
        x = torch.randn(most, linear.in_features, generator=generator).to(device)
        full = linear(x)
        for num_rows in ROW_COUNTS:
            if not torch.equal(linear(x[:num_rows].contiguous()), full[:num_rows]):
                shape = f"{linear.in_features} x {linear.out_features}"
                return f"linear {shape} differs between {num_rows} and {most} rows"
    return None
