"""KV groups: layers that keep the same tokens share one block table.

Full-attention layers keep everything; sliding-window layers forget what lies behind the window, so
they form groups of their own and their pages go back to the pool earlier. All groups hold equally
many layers, so that one pool of equal-byte pages serves all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from infopt.models.config import ModelConfig


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers with one cache policy.

    Attributes:
        layers: Layer indices; at most ``layers_per_group`` of the layout.
        window: Keys a query sees, itself included (None: all).
    """

    layers: tuple[int, ...]
    window: int | None = None


@dataclass(frozen=True, slots=True)
class KVLayout:
    """How keys and values of a model are cut into pages.

    Attributes:
        groups: All KV groups.
        layers_per_group: Layer slots in a page (the last group of a kind may leave some empty).
        block_size: Tokens per page.
        num_kv_heads: Key heads per layer.
        head_dim: Width of a head.
        bytes_per_value: Size of one stored number.
    """

    groups: tuple[KVGroup, ...]
    layers_per_group: int
    block_size: int
    num_kv_heads: int
    head_dim: int
    bytes_per_value: int

    @property
    def page_bytes(self) -> int:
        """Bytes of a page: 2 * layers * heads * block_size * head_dim * bytes."""
        values = 2 * self.layers_per_group * self.num_kv_heads * self.block_size * self.head_dim
        return values * self.bytes_per_value

    @property
    def bytes_per_token(self) -> float:
        """Bytes one token takes over all groups (unused layer slots included)."""
        return len(self.groups) * self.page_bytes / self.block_size

    def place_of(self, layer: int) -> tuple[int, int]:
        """Return ``(group, slot in the page)`` of a layer."""
        for index, group in enumerate(self.groups):
            if layer in group.layers:
                return index, group.layers.index(layer)
        raise AssertionError(f"layer {layer} is in no KV group")

    def max_pages(self, num_tokens: int, max_chunk: int) -> int:
        """Return the most pages a sequence of ``num_tokens`` holds at one moment.

        Args:
            num_tokens: Length of the sequence.
            max_chunk: Most tokens computed in one step: a window group keeps the window of the
                chunk's first token and the chunk itself.
        """
        total = 0
        for group in self.groups:
            pages = -(-num_tokens // self.block_size)
            if group.window is not None:
                kept = group.window - 1 + min(max_chunk, num_tokens)
                pages = min(pages, -(-kept // self.block_size) + 1)
            total += pages
        return total


def plan_layout(
    config: ModelConfig,
    block_size: int,
    bytes_per_value: int,
    max_model_len: int,
    layer_steps: int = 1,
) -> KVLayout:
    """Form KV groups of equal size.

    A window that no sequence can outgrow is full attention. The group size is the count of the
    rarer kind: with 15 window and 3 full layers it is 3, six groups, no slot unused.

    Args:
        config: Architecture.
        block_size: Tokens per page.
        bytes_per_value: Size of one stored number.
        max_model_len: Longest sequence.
        layer_steps: Groups that the layers of the rarer kind are cut into at least, where they are
            so many (eviction may keep fewer rows of later layers).
    """
    window = config.sliding_window
    windowed = window is not None and window < max_model_len
    kinds: dict[bool, list[int]] = {}
    for layer, kind in enumerate(config.layer_kinds):
        kinds.setdefault(kind == "window" and windowed, []).append(layer)
    size = max(min(len(layers) for layers in kinds.values()) // layer_steps, 1)
    groups = [
        KVGroup(tuple(layers[i : i + size]), window if is_window else None)
        for is_window, layers in sorted(kinds.items())
        for i in range(0, len(layers), size)
    ]
    return KVLayout(
        groups=tuple(groups),
        layers_per_group=size,
        block_size=block_size,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        bytes_per_value=bytes_per_value,
    )
