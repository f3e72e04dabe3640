"""Checks the version of transformers, because rose overrides internals of transformers."""

import inspect
from importlib.metadata import version
from typing import Any, Final

import transformers.generation.continuous_batching.cache as cache_module
import transformers.generation.continuous_batching.cache_allocators.cache_allocator as blocks_module
import transformers.generation.continuous_batching.cache_allocators.cache_pool as pool_module
import transformers.generation.continuous_batching.continuous_api as api_module
import transformers.generation.continuous_batching.input_outputs as io_module
import transformers.generation.continuous_batching.model_runner as runner_module
import transformers.generation.continuous_batching.scheduler as scheduler_module

from rose.errors import Unavailable

SUPPORTED: Final = "5.23"

# The constructors and methods that the connector calls or overrides, with their parameters.
_SIGNATURES: Final[dict[str, tuple[Any, tuple[str, ...]]]] = {
    "PagedAttentionCache.__init__": (
        cache_module.PagedAttentionCache.__init__,
        (
            "self",
            "config",
            "continuous_batching_config",
            "device",
            "distributed_helper",
            "dtype",
            "model_supports_logits_to_keep",
        ),
    ),
    "ContinuousBatchProcessor.__init__": (
        api_module.ContinuousBatchProcessor.__init__,
        (
            "self",
            "cache",
            "config",
            "generation_config",
            "continuous_batching_config",
            "logit_processor",
            "input_queue",
            "cancel_queue",
            "output_router",
            "background_thread_status",
            "model_device",
            "model_dtype",
            "scheduler",
            "distributed_helper",
        ),
    ),
    "Scheduler.__init__": (
        scheduler_module.Scheduler.__init__,
        ("self", "cache", "safety_margin", "max_requests_per_batch"),
    ),
    "CachePool.__init__": (
        pool_module.CachePool.__init__,
        ("self", "num_sectors", "num_allocators", "num_reserved_sectors"),
    ),
    "CacheAllocator.register_cache_tensor": (
        cache_module.CacheAllocator.register_cache_tensor,
        ("self", "bytes_per_sector", "non_trash_bytes", "cache_tensor", "pool"),
    ),
    "ContinuousBatchProcessor.prepare_next_batch": (
        api_module.ContinuousBatchProcessor.prepare_next_batch,
        ("self",),
    ),
    "ContinuousBatchProcessor._generation_step": (
        api_module.ContinuousBatchProcessor._generation_step,
        ("self", "model"),
    ),
    "ModelRunner.compute_batch": (
        runner_module.ModelRunner.compute_batch,
        ("self", "model", "batch_data"),
    ),
    "ModelRunner.__init__": (
        runner_module.ModelRunner.__init__,
        (
            "self",
            "logit_processor",
            "cb_config",
            "inputs_and_outputs",
            "cache",
            "do_sample",
            "return_logprobs",
        ),
    ),
    "ModelRunner._sample": (
        runner_module.ModelRunner._sample,
        ("self", "scores", "output_ids"),
    ),
    "PagedAttentionCache.free_blocks": (
        cache_module.PagedAttentionCache.free_blocks,
        ("self", "request_id", "no_cache"),
    ),
    "PagedAttentionCache.mark_complete_blocks": (
        cache_module.PagedAttentionCache.mark_complete_blocks,
        ("self", "state", "complete_blocks"),
    ),
    "PagedAttentionCache.can_store_request_tokens": (
        cache_module.PagedAttentionCache.can_store_request_tokens,
        ("self", "state", "request_len", "dry_run"),
    ),
    "PagedAttentionCache.search_prefix_match": (
        cache_module.PagedAttentionCache.search_prefix_match,
        ("self", "request_id", "prompt_ids"),
    ),
    "CacheAllocator.needs_new_sectors": (
        blocks_module.CacheAllocator.needs_new_sectors,
        ("self", "request_id", "past_length", "query_length"),
    ),
    "CacheAllocator.allocate_cache_to_request": (
        blocks_module.CacheAllocator.allocate_cache_to_request,
        ("self", "request_id", "past_length", "query_length"),
    ),
    "BlockLedger.acquire": (blocks_module.BlockLedger.acquire, ("self", "block_id")),
    "BlockLedger.release": (blocks_module.BlockLedger.release, ("self", "block_id", "no_cache")),
    "BlockLedger.register_new_hash": (
        blocks_module.BlockLedger.register_new_hash,
        ("self", "block_id", "block_hash"),
    ),
    "compute_block_hash": (blocks_module.compute_block_hash, ("parent_hash", "tokens")),
    "CachePool.free_blocks": (
        pool_module.CachePool.free_blocks,
        ("self", "index", "block_ids"),
    ),
    "ContinuousBatchProcessor.fail_all_requests": (
        api_module.ContinuousBatchProcessor.fail_all_requests,
        ("self", "error"),
    ),
    "OutputRouter.fail_and_deliver": (
        api_module.OutputRouter.fail_and_deliver,
        ("self", "state", "error"),
    ),
    "ContinuousBatchingIOs.get_model_kwargs": (
        io_module.ContinuousBatchingIOs.get_model_kwargs,
        ("self", "use_padding"),
    ),
    "ContinuousBatchingIOs.retrieve_device_outputs": (
        io_module.ContinuousBatchingIOs.retrieve_device_outputs,
        ("self",),
    ),
}


def check_version() -> None:
    """Refuse a version of transformers with which rose was not tested.

    Raises:
        Unavailable: the version, or a signature that rose relies on, differs.
    """
    found = version("transformers")
    if not found.startswith(f"{SUPPORTED}."):
        raise Unavailable(
            f"transformers {found} is not supported: rose drives the continuous batching of "
            f"{SUPPORTED}.x (pip install 'transformers=={SUPPORTED}.*')"
        )
    for name, (function, expected) in _SIGNATURES.items():
        actual = tuple(inspect.signature(function).parameters)
        if actual != expected:
            raise Unavailable(
                f"transformers {found} changed {name}: rose needs the parameters "
                f"{', '.join(expected)}, got {', '.join(actual)}; install another {SUPPORTED}.x"
            )
