"""Checks of vLLM's version, and of the methods that rose overrides or calls."""

import inspect
from typing import Any, Final

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_coordinator import KVCacheCoordinator
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.version import __version__

from rose.engines.versions import VLLM
from rose.engines.vllm.settings import check_supported
from rose.errors import Unavailable

# Parameters that some supported versions lack; rose passes them only where they exist.
_NOT_IN_ALL: Final = frozenset({"num_hash_lookahead_tokens"})

_OWNERS: Final[dict[str, Any]] = {
    one.__name__: one for one in (BlockPool, KVCacheCoordinator, KVCacheManager, Scheduler)
}
# Methods that rose overrides or calls, with all their parameters in order.
_SIGNATURES: Final = {
    "BlockPool.__init__": (
        "self num_gpu_blocks enable_caching hash_block_size enable_kv_cache_events "
        "metrics_collector num_hash_lookahead_tokens medium"
    ),
    "BlockPool.get_new_blocks": "self num_blocks",
    "BlockPool.touch": "self blocks",
    "BlockPool.free_blocks": "self ordered_blocks",
    "BlockPool.evict_blocks": "self block_ids",
    "BlockPool.unpin_blocks": "self blocks on_reuse",
    "BlockPool.cache_partial_block": (
        "self request block num_tokens kv_cache_group_id block_size replace_existing_hashes"
    ),
    "BlockPool._maybe_evict_cached_block": "self block",
    "KVCacheCoordinator.get_num_blocks_to_allocate": (
        "self request_id num_tokens new_computed_blocks num_encoder_tokens total_computed_tokens "
        "num_local_computed_tokens num_tokens_main_model apply_admission_cap prefill_end"
    ),
    "KVCacheManager.allocate_slots": (
        "self request num_new_tokens num_new_computed_tokens new_computed_blocks "
        "num_lookahead_tokens num_external_computed_tokens delay_cache_blocks num_encoder_tokens "
        "full_sequence_must_fit reserved_blocks has_scheduled_reqs skip_zeroing_group_ids"
    ),
    "Scheduler.schedule": "self throttle_prefills",
    "Scheduler.update_from_output": "self scheduler_output model_runner_output",
    "Scheduler.add_request": "self request",
    "Scheduler.finish_requests": "self request_ids finished_status",
    "Scheduler.reset_prefix_cache": "self reset_running_requests reset_connector",
    "Scheduler._preempt_request": "self request timestamp drop_stale_output",
}


def check_version() -> None:
    """Check that rose supports the installed vLLM.

    Raises:
        Unavailable: rose does not support the version, or a method in `_SIGNATURES` has other
            parameters.
    """
    found = str(__version__)
    check_supported(found)
    for name, expected in _SIGNATURES.items():
        owner, method = name.split(".")
        actual = list(inspect.signature(getattr(_OWNERS[owner], method)).parameters)
        absent = _NOT_IN_ALL.difference(actual)
        if actual != [one for one in expected.split() if one not in absent]:
            raise Unavailable(
                f"vLLM {found} changed {name}: expected the parameters '{expected}', got "
                f"'{' '.join(actual)}'; install another release of vLLM {' or '.join(VLLM)}"
            )
