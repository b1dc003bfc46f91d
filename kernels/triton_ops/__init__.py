"""Triton kernels, one module per op; `infopt.ops` imports them only where they can run."""
