"""Checks the version of transformers, because rose overrides internals of transformers."""

import inspect
from functools import reduce
from importlib.metadata import version
from typing import Any, Final

from transformers.generation.continuous_batching.cache import PagedAttentionCache
from transformers.generation.continuous_batching.cache_allocators.cache_allocator import (
    BlockLedger,
    CacheAllocator,
    compute_block_hash,
)
from transformers.generation.continuous_batching.cache_allocators.cache_pool import CachePool
from transformers.generation.continuous_batching.continuous_api import (
    ContinuousBatchProcessor,
    OutputRouter,
)
from transformers.generation.continuous_batching.input_outputs import ContinuousBatchingIOs
from transformers.generation.continuous_batching.model_runner import ModelRunner
from transformers.generation.continuous_batching.scheduler import Scheduler

from rose.engines.versions import TRANSFORMERS, is_among
from rose.errors import Unavailable

_OWNERS: Final[dict[str, Any]] = {
    one.__name__: one
    for one in (
        BlockLedger,
        CacheAllocator,
        CachePool,
        ContinuousBatchProcessor,
        ContinuousBatchingIOs,
        ModelRunner,
        OutputRouter,
        PagedAttentionCache,
        Scheduler,
        compute_block_hash,
    )
}
# The functions that the connector calls or overrides, with all their parameters in order.
_SIGNATURES: Final = {
    "PagedAttentionCache.__init__": (
        "self config continuous_batching_config device distributed_helper dtype "
        "model_supports_logits_to_keep"
    ),
    "ContinuousBatchProcessor.__init__": (
        "self cache config generation_config continuous_batching_config logit_processor "
        "input_queue cancel_queue output_router background_thread_status model_device "
        "model_dtype scheduler distributed_helper"
    ),
    "Scheduler.__init__": "self cache safety_margin max_requests_per_batch",
    "CachePool.__init__": "self num_sectors num_allocators num_reserved_sectors",
    "CacheAllocator.register_cache_tensor": (
        "self bytes_per_sector non_trash_bytes cache_tensor pool"
    ),
    "ContinuousBatchProcessor.prepare_next_batch": "self",
    "ContinuousBatchProcessor._generation_step": "self model",
    "ModelRunner.compute_batch": "self model batch_data",
    "ModelRunner.__init__": (
        "self logit_processor cb_config inputs_and_outputs cache do_sample return_logprobs"
    ),
    "ModelRunner._sample": "self scores output_ids",
    "PagedAttentionCache.free_blocks": "self request_id no_cache",
    "PagedAttentionCache.mark_complete_blocks": "self state complete_blocks",
    "PagedAttentionCache.can_store_request_tokens": "self state request_len dry_run",
    "PagedAttentionCache.search_prefix_match": "self request_id prompt_ids",
    "CacheAllocator.needs_new_sectors": "self request_id past_length query_length",
    "CacheAllocator.allocate_cache_to_request": "self request_id past_length query_length",
    "BlockLedger.acquire": "self block_id",
    "BlockLedger.release": "self block_id no_cache",
    "BlockLedger.register_new_hash": "self block_id block_hash",
    "compute_block_hash": "parent_hash tokens",
    "CachePool.free_blocks": "self index block_ids",
    "ContinuousBatchProcessor.fail_all_requests": "self error",
    "OutputRouter.fail_and_deliver": "self state error",
    "ContinuousBatchingIOs.get_model_kwargs": "self use_padding",
    "ContinuousBatchingIOs.retrieve_device_outputs": "self",
}


def check_version() -> None:
    """Refuse a version of transformers with which rose was not tested.

    Raises:
        Unavailable: the version, or a signature that rose relies on, differs.
    """
    found = version("transformers")
    if not is_among(found, TRANSFORMERS):
        raise Unavailable(
            f"transformers {found} is not supported: rose drives the continuous batching of "
            f"{' and '.join(TRANSFORMERS)} (pip install 'transformers=={TRANSFORMERS[-1]}.*')"
        )
    for name, expected in _SIGNATURES.items():
        owner, *method = name.split(".")
        actual = " ".join(inspect.signature(reduce(getattr, method, _OWNERS[owner])).parameters)
        if actual != expected:
            raise Unavailable(
                f"transformers {found} changed {name}: rose needs the parameters '{expected}', "
                f"got '{actual}'; install another release of {' or '.join(TRANSFORMERS)}"
            )
