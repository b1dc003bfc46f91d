"""Kernels for CUDA: Triton's (sources: ``kernels/triton_ops``) and flash-attn's attention.

Each ``load_*`` returns the callable of one op; the ``why_not*`` say why they cannot run on a
target. Importing this package imports neither triton nor flash-attn.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from infopt.ops.context import KVPages
from infopt.ops.dispatch import OpTarget
from infopt.ops.gpu.attention import load_attention
from infopt.ops.gpu.experts import load_experts
from infopt.ops.gpu.flash import PAGE_MULTIPLE as FLASH_PAGE_TOKENS
from infopt.ops.gpu.flash import load_flash_attention, why_not_flash

if TYPE_CHECKING:
    from infopt.ops.rotary import HeadNorms
    from infopt.ops.router import Routing

__all__ = [
    "FLASH_PAGE_TOKENS",
    "load_add_rms_norm",
    "load_attention",
    "load_experts",
    "load_flash_attention",
    "load_gated_activation",
    "load_quantize_pages",
    "load_rotary_and_write",
    "load_route",
    "why_not",
    "why_not_attention",
    "why_not_flash",
    "why_not_quantize_pages",
]

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def why_not(target: OpTarget) -> str | None:
    """Return why the Triton kernels cannot run on a target, or None.

    On a CPU they run in Triton's interpreter, thousands of times slower: only where that was
    switched on before triton was imported, and ``backend="triton"`` asked for.
    """
    if not _has_triton():
        return "triton is not installed"
    if target.dtype not in _DTYPES:
        return f"{target.dtype} is not float32, bfloat16 or float16"
    from infopt.kernels.triton_ops.common import is_interpreted, why_not_device

    if is_interpreted() and target.backend != "triton":
        return "runs in Triton's interpreter here, which is for tests: name it to get it"
    return why_not_device(target.device)


def why_not_attention(target: OpTarget) -> str | None:
    """Return why Triton's attention cannot run on a target, or None."""
    if target.head_dim is not None and target.head_dim > 256:
        return f"head_dim {target.head_dim} is above 256"
    return why_not(target)


def why_not_quantize_pages(target: OpTarget) -> str | None:
    """Return why Triton cannot quantize pages on a target, or None.

    Ampere has no instruction that makes float8 numbers.
    """
    if target.kv_cache_dtype.startswith("fp8"):
        return f"it does not write {target.kv_cache_dtype} pages"
    return why_not(target)


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def load_add_rms_norm() -> Callable[..., Any]:
    """Return the op; see :func:`infopt.ops.rms_norm.add_rms_norm` for its contract."""
    from infopt.kernels.triton_ops.rms_norm import add_rms_norm

    return add_rms_norm


def load_gated_activation() -> Callable[..., Any]:
    """Return the op; see :func:`infopt.ops.activation.gated_activation` for its contract."""
    from infopt.kernels.triton_ops.activation import gated_activation

    return gated_activation


def load_rotary_and_write() -> Callable[..., torch.Tensor]:
    """Return the op; see :func:`infopt.ops.rotary.rotary_and_write` for its contract."""
    from infopt.kernels.triton_ops import rotary

    def rotary_and_write(
        qkv: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        pages: KVPages,
        slots: torch.Tensor,
        norms: HeadNorms | None = None,
    ) -> torch.Tensor:
        """Prepare queries and store keys and values."""
        parts = None if norms is None else (norms.query, norms.key, norms.eps)
        return rotary.rotary_and_write(qkv, cos, sin, pages.keys, pages.values, slots, parts)

    return rotary_and_write


def load_quantize_pages() -> Callable[..., None]:
    """Return the op; see :func:`infopt.ops.kv_quantization.quantize_pages` for its contract."""
    from infopt.kernels.triton_ops.quantize_kv import quantize_kv

    def quantize_pages(pages: KVPages, jobs: torch.Tensor) -> None:
        """Quantize row groups out of full-precision pages."""
        old = pages.quantized
        assert old is not None
        quantize_kv(
            pages.keys, pages.values, jobs, old.data, old.format.bits, old.format.group_size
        )

    return quantize_pages


def load_route() -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """Return the op; see :func:`infopt.ops.router.route` for its contract."""
    from infopt.kernels.triton_ops import router

    def route(
        logits: torch.Tensor, bias: torch.Tensor | None, routing: Routing
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Choose experts."""
        ids, weights = router.route(
            logits,
            routing.top_k,
            scoring=routing.scoring,
            bias=bias,
            num_groups=routing.num_groups,
            top_groups=routing.top_groups,
            best_two=routing.best_two,
            renormalize=routing.renormalize,
            factor=routing.factor,
        )
        return ids.long(), weights

    return route
