"""Where kernels run in these tests, how exact they must be, and pages to write to."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import pytest
import torch

if importlib.util.find_spec("triton") is None:
    collect_ignore_glob = ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Powers overflow on purpose (a sigmoid far to the left is 0); numpy would warn of it."""
    for item in items:
        if "tests/kernels" in item.path.as_posix():
            item.add_marker(pytest.mark.filterwarnings("ignore:overflow encountered"))


DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.fixture(scope="session")
def device() -> torch.device:
    """A GPU where there is one; else the CPU, where Triton interprets."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(params=DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
def dtype(request) -> torch.dtype:
    """Each type of activations."""
    return request.param


@pytest.fixture(scope="session")
def assert_close() -> Callable[..., None]:
    """Compare with a float64 reference: ``ulps`` roundings of the type, relative to ``size``.

    ``size`` is what errors are relative to (default: the expected values themselves); float32 gets
    a few more roundings for sums.
    """

    def check(got, expected, *, size=None, ulps=1.0, dtype=None):
        unit = torch.finfo(dtype or got.dtype).eps
        bound = (expected if size is None else size).double().abs() * unit * ulps
        error = (got.double() - expected.double()).abs()
        tiny = torch.finfo(got.dtype).tiny if got.dtype.is_floating_point else 0.0
        assert torch.isfinite(got).all()
        assert (error <= bound + tiny).all(), f"off by {float((error / (bound + 1e-300)).max())} x"

    return check


@pytest.fixture(scope="session")
def make_pages(device) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """Factory of keys and values as views into one pool, as the engine's pages are."""

    def make(num_pages, num_heads, block_size, head_dim, dtype, fill=0.0):
        shape = (num_pages, 3, 2, num_heads, block_size, head_dim)
        pool = torch.full(shape, fill, dtype=dtype, device=device)
        return pool[:, 1, 0], pool[:, 1, 1]

    return make
