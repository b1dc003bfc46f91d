"""A question that this machine does not have."""

from __future__ import annotations

from infopt.errors import InfoptError
from infopt.experiments.slice_spec import SliceSpec


class SkippedError(InfoptError):
    """The slice is left out; the message is the reason that the manifest records."""


def runs_on_gpu(spec: SliceSpec) -> bool:
    """Tell whether the engines of a slice run on a GPU here."""
    import torch

    device = {**spec.base, **spec.shared}.get("device", "auto")
    return device == "cuda" or (device == "auto" and torch.cuda.is_available())
