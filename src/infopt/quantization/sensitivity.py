"""How much each part of a model suffers from fewer bits, and which bits a budget buys.

For each part (attention or MLP of a layer, the embedding, the head) the logits' divergence from the
float model, KL in nats per token, is measured with that part alone in 4 bits. All variants move
through the layers together, so one layer's weights are in memory at a time. The divergence of other
widths follows from the noise of rounding, whose power is that of the step:

    KL(b) = KL(4) * ((2^4 - 1) / (2^b - 1))^2

Divergences of parts are added up: they are small, and errors of different layers are nearly
independent. The budget is spent where a bit buys the most. A tied embedding and head become two
matrices with bits of their own, and both count.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from infopt.errors import ConfigError
from infopt.models.checkpoint import Checkpoint
from infopt.models.tensor_names import EMBEDDING, EMBEDDING_LAYER, FINAL_NORM, HEAD, HEAD_LAYER
from infopt.ops.rms_norm import rms_norm
from infopt.quantization import coded_embedding
from infopt.quantization.block import Block, Rope
from infopt.quantization.coded import WeightFormat
from infopt.quantization.layerwise import FormatOf, embed, read_block
from infopt.quantization.methods import SCALE_DTYPE
from infopt.quantization.rtn import rtn

PARTS: Mapping[str, str] = {"attention": "self_attn.", "mlp": "mlp."}
WIDTHS = (3, 4, 8)
"""Bits that products can get."""

_PROBE_BITS = 4
_BATCH = 16  # variants at a time


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """What 4 bits do to one part.

    Attributes:
        layer: Which layer; None for embedding and head.
        part: ``attention``, ``mlp``, ``embedding`` or ``head``.
        num_weights: Its weights.
        kl: Mean KL of the logits from the float model's, nats per token.
    """

    layer: int | None
    part: str
    num_weights: int
    kl: float

    @property
    def widths(self) -> Sequence[int]:
        """Bits that this part can get, the fewest first."""
        return coded_embedding.WIDTHS if self.part == "embedding" else WIDTHS

    def kl_at(self, bits: int) -> float:
        """Return the divergence expected at another width."""
        return self.kl * ((2**_PROBE_BITS - 1) / (2**bits - 1)) ** 2

    def holds(self, name: str) -> bool:
        """Tell whether a linear layer belongs to this part."""
        if self.layer is None:
            return name == {"head": HEAD_LAYER, "embedding": EMBEDDING_LAYER}[self.part]
        return name.startswith(f"model.layers.{self.layer}.{PARTS[self.part]}")


@torch.inference_mode()
def measure_sensitivity(
    checkpoint: Checkpoint,
    token_ids: torch.Tensor,
    group_size: int | None,
    progress: Callable[[Sequence[int]], Sequence[int]] = lambda layers: layers,
) -> list[Sensitivity]:
    """Measure all parts.

    Args:
        checkpoint: Float weights.
        token_ids: int64 ``(num_sequences, length)``; a hundred tokens tell parts apart.
        group_size: Inputs that share a scale.
        progress: Wraps the sequence of layer indices.
    """
    config = checkpoint.config
    fmt = WeightFormat(_PROBE_BITS, group_size)
    rope = Rope(config, token_ids.shape[1])
    table = checkpoint.get(EMBEDDING)
    rough_table = rtn(table, fmt, scale_dtype=SCALE_DTYPE, layer=EMBEDDING_LAYER).dequantize()
    # The first is the float model.
    variants = torch.stack([embed(config, t, token_ids) for t in (table, rough_table)])
    found: list[tuple[int | None, str, int]] = [(None, "embedding", table.numel())]
    for index in progress(range(config.num_layers)):
        block = read_block(checkpoint, index)
        clean = variants[0]
        moved = [
            block.forward(part.flatten(0, 1), rope).view(part.shape)
            for part in variants.split(_BATCH)
        ]
        for part, prefix in PARTS.items():
            rough, num_weights = _with_rough(block, prefix, fmt)
            moved.append(rough.forward(clean, rope).unsqueeze(0))
            found.append((index, part, num_weights))
        variants = torch.cat(moved)
    norm = checkpoint.get(FINAL_NORM)
    hidden = rms_norm(variants, norm, config.rms_norm_eps).flatten(1, 2)
    head = checkpoint.get(EMBEDDING if config.tie_word_embeddings else HEAD)
    found.append((None, "head", head.numel()))
    return [
        Sensitivity(layer, part, num_weights, kl)
        for (layer, part, num_weights), kl in zip(
            found, _divergences(hidden, head, fmt), strict=True
        )
    ]


def _with_rough(block: Block, prefix: str, fmt: WeightFormat) -> tuple[Block, int]:
    tensors, num_weights = dict(block.tensors), 0
    for name in block.inputs.linears:
        if name.startswith(prefix):
            weight = block.weight(name)
            num_weights += weight.numel()
            layer = block.prefix + name
            tensors[f"{name}.weight"] = rtn(
                weight, fmt, scale_dtype=SCALE_DTYPE, layer=layer
            ).dequantize()
    return Block(block.config, block.index, tensors), num_weights


def _divergences(hidden: torch.Tensor, head: torch.Tensor, fmt: WeightFormat) -> list[float]:
    """Return the KL of each variant but the first, and of the float model with a rough head."""
    clean = F.log_softmax(hidden[0] @ head.t(), dim=-1)
    out = [_kl(clean, F.log_softmax(rows @ head.t(), dim=-1)) for rows in hidden[1:]]
    rough = rtn(head, fmt, scale_dtype=SCALE_DTYPE, layer=HEAD_LAYER).dequantize()
    return [*out, _kl(clean, F.log_softmax(hidden[0] @ rough.t(), dim=-1))]


def _kl(log_p: torch.Tensor, log_q: torch.Tensor) -> float:
    return max(float((log_p.exp() * (log_p - log_q)).sum(dim=-1, dtype=torch.float64).mean()), 0.0)


def allocate(
    sensitivities: Sequence[Sensitivity],
    average_bits: float,
    group_size: int | None,
) -> dict[int, int]:
    """Spend a budget of bits.

    Args:
        sensitivities: Of all parts.
        average_bits: Bits per weight on average, scales included.
        group_size: Inputs that share a scale below 8 bits (16 bits each).

    Returns:
        Bits by position in ``sensitivities``.

    Raises:
        ConfigError: If not even the fewest bits fit.
    """
    total = sum(s.num_weights for s in sensitivities)
    fewest = sum(stored_bits(s.widths[0], group_size) * s.num_weights for s in sensitivities)
    left = average_bits * total - fewest
    if left < 0:
        raise ConfigError(
            f"An average of {average_bits:g} bits is below the {fewest / total:.3g} that the "
            "fewest bits take with their scales.",
            field="quantization",
            value=average_bits,
            remedy=f"Ask for at least {fewest / total:.2f}.",
        )
    level = [0] * len(sensitivities)

    def step(at: int) -> tuple[int, int, float]:
        """Return the bits of a part, the next more, and what they cost in all."""
        part = sensitivities[at]
        low, high = part.widths[level[at]], part.widths[level[at] + 1]
        extra = stored_bits(high, group_size) - stored_bits(low, group_size)
        return low, high, extra * part.num_weights

    def offer(at: int) -> tuple[float, int] | None:
        if level[at] + 1 == len(sensitivities[at].widths):
            return None
        low, high, price = step(at)
        return -(sensitivities[at].kl_at(low) - sensitivities[at].kl_at(high)) / price, at

    heap = [o for at in range(len(level)) if (o := offer(at)) is not None]
    heapq.heapify(heap)
    while heap:
        _, at = heapq.heappop(heap)
        price = step(at)[2]
        if price > left:
            continue
        left -= price
        level[at] += 1
        following = offer(at)
        if following is not None:
            heapq.heappush(heap, following)
    return {
        at: s.widths[chosen]
        for (at, s), chosen in zip(enumerate(sensitivities), level, strict=True)
    }


def stored_bits(bits: int, group_size: int | None) -> float:
    """Return bits per weight with scales; those of 8 bits, one per output, are next to none."""
    return bits + (0.0 if bits == 8 or group_size is None else 16 / group_size)


def mixed_formats(
    sensitivities: Sequence[Sensitivity], average_bits: float, group_size: int | None
) -> FormatOf:
    """Return the format of each linear layer under a budget."""
    bits = allocate(sensitivities, average_bits, group_size)

    def format_of(name: str) -> WeightFormat:
        for at, part in enumerate(sensitivities):
            if part.holds(name):
                return WeightFormat(bits[at], None if bits[at] == 8 else group_size)
        raise AssertionError(f"{name} belongs to no part")

    return format_of
