"""From what a request asks for to the eviction of its sequences."""

from __future__ import annotations

import logging

from infopt.cache.eviction import EvictionConfig, EvictionState, read_eviction
from infopt.cache.manager import CacheManager
from infopt.cache.quantized_pages import PageNeed
from infopt.config import EngineConfig
from infopt.engine.eviction_room import host_pages_for
from infopt.errors import CapacityError, ConfigError, SamplingParamsError
from infopt.sampling_params import SamplingParams

logger = logging.getLogger(__name__)


def default_eviction(config: EngineConfig) -> EvictionConfig | None:
    """Return what an engine evicts where requests say nothing.

    Raises:
        ConfigError: Unknown method or option, a value out of range, or no swapping.
    """
    eviction = read_eviction(config.kv_eviction)
    if eviction is not None and config.preemption != "swap":
        raise ConfigError(
            f"kv_eviction needs preemption='swap', got {config.preemption!r}: evicted rows cannot "
            "be computed again.",
            field="preemption",
            value=config.preemption,
            remedy="Set preemption='swap'; host memory is taken when it is first needed.",
        )
    return eviction


class EvictionPlanner:
    """Decides for each sequence what is evicted.

    Args:
        default: Where requests say nothing.
        cache: Pages.
        num_swap: Host pages.
        is_native: Whether the model's layers are ours: others keep keys as they like.
    """

    def __init__(
        self,
        default: EvictionConfig | None,
        cache: CacheManager,
        num_swap: PageNeed,
        is_native: bool = True,
    ) -> None:
        """Check the default against the model.

        Raises:
            ConfigError: The model has no layer to evict from.
        """
        self._default, self._cache, self._num_swap = default, cache, num_swap
        self._is_native = is_native
        self._layout = cache.layout
        if default is not None:
            self._check_layout(default)

    def config_for(self, params: SamplingParams) -> EvictionConfig | None:
        """Return what a request asks for.

        Raises:
            SamplingParamsError: It asks for something that does not exist, or not here.
        """
        if params.kv_eviction is None:
            return self._default
        try:
            config = read_eviction(params.kv_eviction)
            if config is not None:
                self._check_layout(config)
        except ConfigError as error:
            raise SamplingParamsError(
                error.message, field=error.field, value=error.value, remedy=error.remedy
            ) from error
        return config

    def streamed_rows(self, config: EvictionConfig | None, num_prompt: int) -> int | None:
        """Return the most rows of an output whose positions count within the cache.

        None where positions are true: there the length of the whole text is what counts.
        """
        if config is None or not config.press.is_relative:
            return None
        rows = max(config.budgets(num_prompt, 1)) + config.interval_pages * self._layout.block_size
        return max(rows, num_prompt)

    def plan(
        self, config: EvictionConfig | None, num_prompt: int, max_tokens: int
    ) -> EvictionState | None:
        """Return the state of a new sequence; None where nothing would ever be evicted.

        Raises:
            CapacityError: Host memory could not take the sequence if it had to be swapped out.
        """
        if config is None:
            return None
        state = EvictionState.plan(config, self._layout, num_prompt, max_tokens)
        if state is None:
            logger.debug("kv_eviction: nothing will go of a prompt of %d tokens", num_prompt)
            return None
        needed, room = host_pages_for(state, self._cache, num_prompt + max_tokens), self._num_swap
        if needed.full > room.full or needed.quantized > room.quantized:
            raise CapacityError(
                f"kv_eviction: swapping the request out may take {needed.full} host pages (and "
                f"{needed.quantized} quantized ones), there are {room.full} ({room.quantized}).",
                field="swap_memory_gib",
                value=room.full,
                remedy="Set preemption='swap' and raise swap_memory_gib, or lower max_tokens.",
            )
        return state

    def _check_layout(self, config: EvictionConfig) -> None:
        if not self._is_native:
            raise ConfigError(
                "kv_eviction needs a model that runs natively, and this one runs through "
                "transformers.",
                field="kv_eviction",
                value=config.method,
                remedy="Leave it out.",
            )
        num_full = sum(group.window is None for group in self._layout.groups)
        if config.press.is_relative and num_full < len(self._layout.groups):
            raise ConfigError(
                "kv_eviction: positions='relative' counts positions anew, and the keys of sliding "
                "windows keep theirs.",
                field="kv_eviction.positions",
                value="relative",
                remedy="Leave it out for this model.",
            )
        if not num_full:
            raise ConfigError(
                "kv_eviction acts on layers with full attention, and this model has none.",
                field="kv_eviction",
                value=config.method,
                remedy="Leave it out: sliding windows let go of old rows by themselves.",
            )
        if config.press.layer_steps > 1 and num_full == 1:
            raise ConfigError(
                f"kv_eviction: {config.method} gives layers different budgets, but this engine "
                "keeps all of them in one KV group.",
                field="kv_eviction.method",
                value=config.method,
                remedy="Start the engine with kv_eviction={'method': 'pyramid', ...}.",
            )
