"""Operations of a decoder step: each one a PyTorch reference, a dispatch and optional kernels.

`resolve_ops` picks one implementation per op for a device and dtype and says why; models receive
the resulting :class:`~infopt.ops.dispatch.OpSet` and never look at hardware themselves.
"""

from __future__ import annotations

from infopt.ops.context import ForwardContext, GroupContext, KVPages
from infopt.ops.dispatch import OpChoice, OpSet, resolve_ops

__all__ = ["ForwardContext", "GroupContext", "KVPages", "OpChoice", "OpSet", "resolve_ops"]
