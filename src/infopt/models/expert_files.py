"""Names of expert tensors in checkpoint files.

Files have a tensor per expert and projection, or since transformers 5 one tensor for all experts:

    mlp.experts.gate_up_proj   (num_experts, 2 * size, hidden_size), gate first
    mlp.experts.down_proj      (num_experts, hidden_size, size)

Each expert's weight is then a slice, and a slice is all that is read of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from infopt.errors import CheckpointError
from infopt.models.config import ModelConfig, MoeConfig
from infopt.models.tensor_names import EXPERTS

_FUSED = re.compile(rf"^(model\.layers\.(\d+)\.{re.escape(EXPERTS)})\.(gate_up_proj|down_proj)$")

# Mixtral's own names, by the part after the layer.
_MIXTRAL = re.compile(r"\.block_sparse_moe\.(gate\.|experts\.\d+\.(w[123])\.)")
_MIXTRAL_PROJECTIONS = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}


@dataclass(frozen=True, slots=True)
class ExpertSlice:
    """Where the weight of one projection of one expert lies.

    Attributes:
        stored: Name of the tensor in the file.
        expert: First index into it.
        first_row: First row of the projection.
        num_rows: Number of rows.
    """

    stored: str
    expert: int
    first_row: int
    num_rows: int

    @property
    def index(self) -> tuple[int, slice]:
        """Index into the stored tensor; gives ``(out_features, in_features)``."""
        return self.expert, slice(self.first_row, self.first_row + self.num_rows)


def canonical_expert_name(name: str) -> str:
    """Translate a name that Mixtral alone has; others stay as they are."""
    found = _MIXTRAL.search(name)
    if found is None:
        return name
    projection = found[2]
    part = found[1].replace(f".{projection}.", f".{_MIXTRAL_PROJECTIONS.get(projection, '')}.")
    return f"{name[: found.start()]}.mlp.{part}{name[found.end() :]}"


def expert_slices(
    stored: str, name: str, shape: tuple[int, ...], config: ModelConfig
) -> dict[str, ExpertSlice] | None:
    """Return what a tensor holds of all experts, or None where it is another tensor.

    Args:
        stored: Its name in the file.
        name: The same, canonical but for the experts.
        shape: Its shape.
        config: The architecture.

    Returns:
        Canonical name of a weight -> its place.

    Raises:
        CheckpointError: If the shape is not that of all experts together.
    """
    found, moe = _FUSED.match(name), config.moe
    if found is None or moe is None or not _is_sparse(moe, int(found[2])):
        return None
    rows = _rows(found[3], moe, config.hidden_size)
    _check_shape(stored, shape, found[3], moe, config.hidden_size)
    return {
        f"{found[1]}.{expert}.{projection}.weight": ExpertSlice(stored, expert, first, count)
        for expert in range(moe.num_experts)
        for projection, (first, count) in rows.items()
    }


def _is_sparse(moe: MoeConfig, layer: int) -> bool:
    return layer < len(moe.is_sparse) and moe.is_sparse[layer]


def _rows(kind: str, moe: MoeConfig, hidden: int) -> dict[str, tuple[int, int]]:
    """Return first row and number of rows of each projection in a fused tensor."""
    if kind == "down_proj":
        return {"down_proj": (0, hidden)}
    size = moe.intermediate_size
    return {"gate_proj": (0, size), "up_proj": (size, size)}


def _check_shape(
    stored: str, shape: tuple[int, ...], kind: str, moe: MoeConfig, hidden: int
) -> None:
    size = moe.intermediate_size
    matrix = (hidden, size) if kind == "down_proj" else (2 * size, hidden)
    expected = (moe.num_experts, *matrix)
    if shape != expected:
        raise CheckpointError(
            f"{stored!r} has shape {shape}, its configuration demands {expected}.",
            field=stored,
            value=shape,
            remedy="The configuration belongs to another model.",
        )
