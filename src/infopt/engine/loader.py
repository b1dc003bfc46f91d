"""Puts an engine together: model file, ops, decoder, page pool."""

from __future__ import annotations

import functools
import importlib
import logging
from typing import Any

import torch

from infopt.cache.groups import KVLayout, plan_layout
from infopt.cache.manager import CacheManager
from infopt.cache.pages import PageStore, QuantizedStore
from infopt.cache.quantized_pages import QuantizedLayout, QuantizedPool
from infopt.config import EngineConfig
from infopt.engine.admission import RequestChecker
from infopt.engine.clock import Clock, MonotonicClock
from infopt.engine.decode_graphs import CudaGraphs, DecodeGraphs, GraphLimits
from infopt.engine.description import describe_engine
from infopt.engine.draft_control import DraftControl
from infopt.engine.drafting import Drafter, DraftTarget, ModelDrafter, model_drafter
from infopt.engine.engine import Engine
from infopt.engine.eviction_request import default_eviction
from infopt.engine.parts import EngineParts
from infopt.engine.pool_plan import (
    DraftMemory,
    PoolPlan,
    PoolPlanner,
    kv_format,
    quantized_layout,
)
from infopt.engine.runner import ModelRunner
from infopt.engine.weights import LoadedModel, Progress, load_model
from infopt.errors import ConfigError, DependencyError
from infopt.models.fallback.route import Route, find_route
from infopt.models.registry import resolve_model
from infopt.ops import resolve_ops

logger = logging.getLogger(__name__)

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def build_engine(
    config: EngineConfig,
    *,
    clock: Clock | None = None,
    progress: Progress = lambda layers: layers,
) -> Engine:
    """Load a model and make an engine for it.

    Sets torch's number of threads for the whole process when ``num_threads`` is given.

    Args:
        config: How to run.
        clock: Source of time (default: the machine's monotonic clock).
        progress: Wraps the sequence of layer indices while weights load.

    Raises:
        InfoptError: For anything in the config that cannot be had here.
    """
    device = _device(config)
    dtype = _dtype(config, device)
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    options, eviction = _draft_options(config), default_eviction(config)
    kv_format(config, 0)  # refused before anything is loaded
    route = find_route(resolve_model(config.model).path)
    if route is not None:
        drafter = None if options is None else options.build(None)
        parts = _fallback(route).build_fallback(config, route, dtype, device, drafter)
        return Engine(config, parts, clock or MonotonicClock())
    ops = resolve_ops(
        config.backend,
        device,
        dtype,
        block_size=config.block_size,
        kv_cache_dtype=config.kv_cache_dtype,
    )
    loaded = load_model(config, ops, device, dtype, progress)
    model, identity, max_model_len = loaded.model, loaded.identity, loaded.max_model_len
    drafter = _drafter(options, config, loaded)
    extra = model_drafter(drafter)
    fmt = kv_format(config, 0 if drafter is None else drafter.max_tokens)
    steps = 1 if eviction is None else eviction.press.layer_steps
    layout = plan_layout(model.config, config.block_size, dtype.itemsize, max_model_len, steps)
    old = quantized_layout(layout, fmt)
    pools = PoolPlanner(config, layout, old, max_model_len, _draft_memory(config, extra)).plan()
    store = _store(layout, old, pools, dtype, device)
    if pools.tokens < max_model_len:
        logger.warning(
            "the KV pool holds %d tokens of one sequence, fewer than max_model_len=%d",
            pools.tokens,
            max_model_len,
        )
    cache = CacheManager(
        layout,
        pools.pages.full,
        identity={
            "model": identity,
            "dtype": str(dtype),
            "backend": str(ops.describe()),
            "quantization": str(loaded.quantization),
            "kv_format": str(old and old.format),
        },
        enable_prefix_caching=config.enable_prefix_caching,
        quantized=None if old is None else QuantizedPool(old, pools.pages.quantized),
    )
    runner = ModelRunner(model, store, layout)
    use_graphs(runner, config, max_model_len)
    if extra is not None:
        extra.attach(runner, pools.pages.full, pools.capacity)
    parts = EngineParts(
        runner=runner,
        cache=cache,
        checker=RequestChecker(
            num_token_ids=model.config.num_real_tokens,
            max_model_len=max_model_len,
            pool_tokens=pools.tokens,
            eos_token_ids=model.config.eos_token_ids,
        ),
        num_swap_pages=pools.swap,
        tokenizer=loaded.tokenizer,
        description=describe_engine(model, store, max_model_len, pools.tokens)
        | {"model_identity": identity, "quantization": loaded.quantization}
        | {"num_kv_pages": pools.pages.full}
        | {"model_path": "native", "model_path_reason": "the native decoder runs this family"}
        | {"drafter": None if extra is None else extra.describe()},
        drafter=drafter,
        make_control=functools.partial(_control, config),
    )
    return Engine(config, parts, clock or MonotonicClock())


def use_graphs(runner: ModelRunner, config: EngineConfig, max_model_len: int) -> None:
    """Let a runner replay its decode steps where it can, or know why not."""
    if config.cuda_graphs == "off":
        runner.why_no_graphs = "cuda_graphs is off"
    elif runner.device.type != "cuda":
        runner.why_no_graphs = f"a {runner.device.type} has none"
    elif config.kv_cache_dtype != "auto":
        runner.why_no_graphs = "quantized KV pages are not captured"
    else:
        runner.graphs = DecodeGraphs(
            runner.compute,
            CudaGraphs(runner.device),
            GraphLimits.of(runner.layout, config.max_num_seqs, max_model_len),
            runner.device,
        )


def _fallback(route: Route) -> Any:
    """Return the module that runs other families; it needs more of transformers than others do.

    Raises:
        DependencyError: If this transformers is too old for it.
    """
    try:
        return importlib.import_module("infopt.engine.fallback_loader")
    except ImportError as error:
        raise DependencyError(
            f"{route.folder.name} runs through transformers' modules, and this transformers lacks "
            f"what that needs: {error}.",
            field="transformers",
            remedy="Install transformers 5.23 or newer.",
        ) from error


def _draft_options(config: EngineConfig) -> Any:
    """Return the checked options of what guesses tokens; found by name, like schemes."""
    if config.speculative is None:
        return None
    return importlib.import_module("infopt.speculative").read_options(config.speculative)


def _drafter(options: Any, config: EngineConfig, loaded: LoadedModel) -> Drafter | None:
    if options is None:
        return None
    return options.build(
        DraftTarget(
            config=config,
            model=loaded.model,
            tokenizer=loaded.tokenizer,
            identity=loaded.identity,
            max_model_len=loaded.max_model_len,
        )
    )


def _draft_memory(config: EngineConfig, extra: ModelDrafter | None) -> DraftMemory:
    """Return what a drafter takes of the budget."""
    if extra is None:
        return DraftMemory()
    tokens = extra.num_scratch_tokens
    # The first of them may lie anywhere in its page.
    per_group = -(-(tokens - 1) // config.block_size) + 1 if tokens else 0
    return DraftMemory(extra.kv_bytes_per_token, config.max_num_seqs * per_group)


def _store(
    layout: KVLayout,
    old: QuantizedLayout | None,
    pools: PoolPlan,
    dtype: torch.dtype,
    device: torch.device,
) -> PageStore:
    """Allocate the pages of both forms."""
    quantized = None
    if old is not None:
        quantized = QuantizedStore(old, pools.pages.quantized, pools.swap.quantized, device)
    num_pages = pools.pages.full + pools.scratch
    return PageStore(layout, num_pages, pools.swap.full, dtype, device, quantized)


def _control(config: EngineConfig, clock: Clock) -> DraftControl:
    """Return what decides how many tokens are guessed."""
    if config.speculative is None:
        return DraftControl(clock)
    return importlib.import_module("infopt.speculative").make_control(config.speculative, clock)


def _device(config: EngineConfig) -> torch.device:
    has_cuda = torch.cuda.is_available()
    if config.device == "cuda" and not has_cuda:
        raise ConfigError(
            "device='cuda', but torch sees no CUDA device.",
            field="device",
            value="cuda",
            remedy="Use device='auto' or 'cpu'; `infopt doctor` says what is missing.",
        )
    return torch.device("cuda" if has_cuda and config.device != "cpu" else "cpu")


def _dtype(config: EngineConfig, device: torch.device) -> torch.dtype:
    if config.dtype != "auto":
        return _DTYPES[config.dtype]
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    return torch.bfloat16 if torch.ops.mkldnn._is_mkldnn_bf16_supported() else torch.float32
