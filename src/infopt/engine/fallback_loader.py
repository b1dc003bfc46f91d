"""Puts an engine together around transformers' modules instead of the native decoder."""

from __future__ import annotations

import dataclasses
import logging
from typing import cast

import torch
import transformers

from infopt.cache.groups import KVGroup, KVLayout
from infopt.cache.manager import CacheManager
from infopt.cache.pages import PageStore
from infopt.cache.part_pages import PartLayout, PartStore, plan_part_layout
from infopt.cache.slot_store import StateManager, StateStore
from infopt.config import EngineConfig
from infopt.engine.admission import RequestChecker
from infopt.engine.drafting import Drafter
from infopt.engine.limits import limited_length
from infopt.engine.parts import EngineParts
from infopt.engine.pool_plan import PoolPlan, PoolPlanner
from infopt.engine.runner import ModelRunner
from infopt.errors import ConfigError
from infopt.models.decoder import Decoder
from infopt.models.fallback.load import load
from infopt.models.fallback.model import TransformersModel
from infopt.models.fallback.parts import describe_layers
from infopt.models.fallback.route import Route
from infopt.models.fingerprint import content_identity
from infopt.models.tokenizer import folder_tokenizer
from infopt.ops import resolve_ops

logger = logging.getLogger(__name__)

_HONOURED = frozenset(
    (
        "model",
        "dtype",
        "device",
        "backend",
        "cuda_graphs",
        "scheduling",
        "max_num_seqs",
        "max_num_batched_tokens",
        "max_model_len",
        "block_size",
        "num_kv_pages",
        "kv_cache_memory_gib",
        "enable_prefix_caching",
        "preemption",
        "swap_memory_gib",
        "max_num_waiting",
        "num_threads",
        "seed",
        "skip_tokenizer_init",
        "check_integrity",
        "speculative",
    )
)
"""Options that mean the same on this path. Any other one, once it is set, is refused."""


def check_options(config: EngineConfig, route: Route) -> None:
    """Refuse what transformers' modules would silently leave out.

    Raises:
        ConfigError: Names the option.
    """
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name not in _HONOURED and value != field.default:
            raise _refused(field.name, value, route)
    if config.backend not in ("auto", "reference"):
        raise _refused("backend", config.backend, route)


def _refused(name: str, value: object, route: Route) -> ConfigError:
    return ConfigError(
        f"{name}={value!r} is for models that run natively; {route.folder.name} runs through "
        f"transformers ({route.reason})",
        field=name,
        value=value,
        remedy=f"Leave {name} at its default.",
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Fallback:
    """A loaded model with its pages.

    Attributes:
        model: Transformers' modules behind the decoder's face.
        layout: How pages are cut (or counted).
        route: Why it is here.
        ignored: Tensors of the files that the decoder has no use for.
        max_model_len: Longest sequence that is accepted.
        identity: Identity of the checkpoint's content.
    """

    model: TransformersModel
    layout: KVLayout
    route: Route
    ignored: tuple[str, ...]
    max_model_len: int
    identity: str

    def make_store(self, pools: PoolPlan) -> PageStore:
        """Return the memory behind the pages."""
        if isinstance(self.layout, PartLayout):
            model = self.model
            return PartStore(
                self.layout, pools.pages.full, pools.swap.full, model.dtype, model.device
            )
        return cast(PageStore, StateStore(self.layout, pools.pages.full))

    def make_cache(self, store: PageStore, pools: PoolPlan, config: EngineConfig) -> CacheManager:
        """Return who hands out pages; their keys hold everything that changes their content."""
        identity = {
            "model": self.identity,
            "dtype": str(self.model.dtype),
            "backend": f"transformers {transformers.__version__}",
        }
        num_pages = pools.pages.full
        if isinstance(store, PartStore):
            return CacheManager(self.layout, num_pages, identity, config.enable_prefix_caching)
        return StateManager(self.layout, num_pages, identity, cast(StateStore, store))

    @property
    def stored_bytes_per_token(self) -> float:
        """Bytes one token really takes, room that no layer uses left out."""
        if isinstance(self.layout, PartLayout):
            return self.layout.stored_bytes_per_token
        return self.model.state_bytes_per_token

    def describe_pools(self, store: PageStore, pools: PoolPlan) -> dict[str, object]:
        """Return the sizes of the pool."""
        return {
            "max_model_len": self.max_model_len,
            "pool_tokens": pools.tokens,
            "num_kv_pages": pools.pages.full,
            "num_kv_groups": len(self.layout.groups),
            "page_bytes": self.layout.page_bytes,
            "kv_pool_bytes": store.num_bytes,
            "kv_bytes_per_token": self.layout.bytes_per_token,
            "kv_cache": {"dtype": "auto"},
        }

    def describe(self) -> dict[str, object]:
        """Return how the model runs, and what it caches."""
        model = self.model
        cached = (
            describe_layers(model.layers_cache)
            if model.why_unpaged is None
            else f"a state per sequence, kept by transformers: {model.why_unpaged}"
        )
        return {
            "device": str(model.device),
            "dtype": str(model.dtype).removeprefix("torch."),
            "num_threads": torch.get_num_threads(),
            "ops": model.describe_ops(),
            "batch_invariant": False if model.dtype == torch.float32 else None,
            "batch_invariance_violation": "transformers' own matrix products",
            "weights_bytes": model.weight_bytes,
            "bytes_per_weight": model.bytes_per_weight,
            "model_identity": self.identity,
            "quantization": _no_quantization(model),
            "model_path": "transformers",
            "model_path_reason": self.route.reason,
            "kv_layers": cached,
            "kv_is_paged": model.why_unpaged is None,
            "kv_stored_bytes_per_token": self.stored_bytes_per_token,
            "self_check_error": model.check_error,
            "ignored_tensors": list(self.ignored),
            "num_parameters": model.config.num_parameters,
            "num_active_parameters": model.config.num_active_parameters,
        }


def build_fallback(
    config: EngineConfig,
    route: Route,
    dtype: torch.dtype,
    device: torch.device,
    drafter: Drafter | None,
) -> EngineParts:
    """Load a model through transformers and give it pages.

    Args:
        config: How to run.
        route: What to load.
        dtype: Compute type.
        device: Where to run.
        drafter: Guesses tokens.

    Raises:
        InfoptError: For what it cannot honour.
    """
    fallback = load_fallback(config, route, dtype, device)
    model, max_model_len = fallback.model, fallback.max_model_len
    pools = PoolPlanner(config, fallback.layout, None, max_model_len).plan()
    if pools.tokens < max_model_len:
        logger.warning(
            "the KV pool holds %d tokens of one sequence, fewer than max_model_len=%d",
            pools.tokens,
            max_model_len,
        )
    store = fallback.make_store(pools)
    runner = ModelRunner(cast(Decoder, model), store, fallback.layout)
    runner.why_no_graphs = "transformers' modules are not captured"
    checker = RequestChecker(
        num_token_ids=model.config.num_real_tokens,
        max_model_len=max_model_len,
        pool_tokens=pools.tokens,
        eos_token_ids=model.config.eos_token_ids,
    )
    return EngineParts(
        runner=runner,
        cache=fallback.make_cache(store, pools, config),
        checker=checker,
        num_swap_pages=pools.swap,
        tokenizer=None if config.skip_tokenizer_init else folder_tokenizer(route.folder),
        description=fallback.describe() | fallback.describe_pools(store, pools),
        drafter=drafter,
    )


def load_fallback(
    config: EngineConfig,
    route: Route,
    dtype: torch.dtype,
    device: torch.device,
) -> Fallback:
    """Load a model through transformers.

    Raises:
        InfoptError: For what it cannot honour.
    """
    check_options(config, route)
    loaded = load(route, dtype, device)
    if loaded.why_unpaged is not None:
        _check_unpaged(config, route, loaded.why_unpaged)
    ops = resolve_ops(config.backend, device, dtype, block_size=config.block_size)
    model = TransformersModel(loaded, ops, dtype=dtype, device=device, block_size=config.block_size)
    logger.warning(
        "%s runs through transformers' modules, slower than natively: %s",
        route.folder.name,
        route.reason,
    )
    max_model_len = limited_length(config, loaded.config.max_position_embeddings)
    layout = _layout(model, config.block_size, max_model_len)
    identity = content_identity(route.folder)
    return Fallback(model, layout, route, loaded.ignored, max_model_len, identity)


def _layout(model: TransformersModel, block_size: int, max_model_len: int) -> KVLayout:
    if model.why_unpaged is None:
        return plan_part_layout(model.layers_cache, block_size, model.dtype.itemsize, max_model_len)
    half = -(-int(model.state_bytes_per_token) // 2)
    return KVLayout((KVGroup((0,)),), 1, block_size, 1, half, 1)


def _no_quantization(model: TransformersModel) -> dict[str, object]:
    """Return the report of the scheme ``none``, with the fields of any other one."""
    return {
        "scheme": "none",
        "formats": {str(model.dtype).removeprefix("torch."): 1},
        "backend": "transformers",
        "reason": "transformers' own modules",
        "path": "float",
        "weight_bits": 8.0 * model.bytes_per_weight,
        "on_stored_grid": None,
    }


def _check_unpaged(config: EngineConfig, route: Route, reason: str) -> None:
    """Refuse what needs pages; announce what is off."""
    if config.preemption == "swap":
        raise _refused("preemption", "swap", route)
    if config.speculative is not None:
        raise _refused("speculative", config.speculative, route)
    logger.warning(
        "%s keeps a state of its own per sequence (%s): unpaged, no prefix cache, preemption by "
        "computing again, no batched passes",
        route.folder.name,
        reason,
    )
