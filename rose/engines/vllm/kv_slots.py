"""A `KVCacheManager` of vLLM that asks rose for blocks before it refuses a request."""

from collections.abc import Sequence
from typing import Any, Final

from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager
from vllm.v1.request import Request, RequestStatus

from rose.engines.vllm.block_pool import LeasedBlockPool
from rose.errors import check

_allocate: Final = KVCacheManager.allocate_slots


class LeasedKVCacheManager(KVCacheManager):  # type: ignore[misc]  # vLLM is not followed
    """A `KVCacheManager` over a `LeasedBlockPool`.

    vLLM reads the number of free blocks from the pool, and never passes the number that it needs.
    A failed allocation changes nothing. So after a failure this class computes the number of blocks
    needed, gets them by a revocation or a grant, and repeats the allocation, all in the same step.
    """

    block_pool: LeasedBlockPool

    def __init__(self, **parts: Any) -> None:
        """Build vLLM's manager."""
        super().__init__(**parts)
        self._parts = parts
        # vLLM records new blocks only for the few models whose blocks it zeroes. Under rose the
        # scheduler decides in each step whether to zero blocks (`needs_kv_cache_zeroing`), so all
        # new blocks are recorded.
        managers = self.coordinator.single_type_managers
        for manager in managers:
            manager._record_new_block_ids = True
            check(manager.records_new_block_ids, "vLLM keeps no record of new blocks")
        only = managers[0] if [type(one) for one in managers] == [FullAttentionManager] else None
        is_plain = only is not None and only.block_size == self.block_pool.hash_block_size
        # The only manager, if it changes nothing for tokens within blocks that a request has.
        self._plain = only if is_plain else None

    def over_another_pool(self) -> "LeasedKVCacheManager":
        """Return an empty manager with the same options, over the pool that `pool_of` has set."""
        return LeasedKVCacheManager(**self._parts)

    def allocate_slots(
        self, request: Request, num_new_tokens: int, num_lookahead_tokens: int = 0, **options: Any
    ) -> KVCacheBlocks | None:
        """Allocate blocks for the next tokens of `request`; None if rose has too few."""
        # vLLM calls this for each running request in each step, without options. `super()` and an
        # unpacked dictionary would each double the cost of the call.
        ahead = num_lookahead_tokens
        if self._plain is not None and not options and ahead == 0:
            had, size = request.num_computed_tokens, self._plain.block_size
            has = had + num_new_tokens
            held = len(self._plain.req_to_blocks[request.request_id])
            # Most steps: each token goes into a block that the request has, and fills no block. So
            # no block is taken, and none becomes a cached prefix.
            if has // size == had // size and has <= held * size:
                return self.empty_kv_cache_blocks
        slots: KVCacheBlocks | None
        if options:
            slots = _allocate(self, request, num_new_tokens, num_lookahead_tokens=ahead, **options)
        else:
            slots = _allocate(self, request, num_new_tokens, num_lookahead_tokens=ahead)
        if slots is None:
            options["num_lookahead_tokens"] = ahead
            needed = self._blocks_needed(request, num_new_tokens, options)
            self.block_pool.ensure(needed)
            slots = _allocate(self, request, num_new_tokens, **options)
        return slots

    def _blocks_needed(self, request: Request, new_tokens: int, options: dict[str, Any]) -> int:
        """Return the number of free blocks that vLLM requires to accept these tokens."""
        hits = (options.get("new_computed_blocks") or self.empty_kv_cache_blocks).blocks
        local = request.num_computed_tokens + options.get("num_new_computed_tokens", 0)
        tokens = local + new_tokens + options.get("num_external_computed_tokens", 0)
        tokens += options.get("num_lookahead_tokens", 0)
        if options.get("full_sequence_must_fit", False):
            tokens = max(tokens, request.num_tokens)
        needed = self._blocks_for(request, tokens, hits, local=local, options=options)
        if request.status != RequestStatus.RUNNING:
            needed += self.watermark_blocks
        return needed + int(options.get("reserved_blocks", 0))

    def _blocks_for(
        self,
        request: Request,
        tokens: int,
        hits: tuple[Sequence[Any], ...],
        *,
        local: int,
        options: dict[str, Any],
    ) -> int:
        """Return the number of blocks that must be free for the first `tokens` tokens.

        Args:
            request: request that needs the blocks.
            tokens: number of the request's first tokens that must have a block.
            hits: cached blocks that hold the request's first tokens, by KV cache group.
            local: number of first tokens whose KV is in this pool already.
            options: options of `allocate_slots`.
        """
        tokens = min(tokens, self.max_model_len)
        computed = local + options.get("num_external_computed_tokens", 0)
        return int(
            self.coordinator.get_num_blocks_to_allocate(
                request_id=request.request_id,
                num_tokens=tokens,
                new_computed_blocks=hits,
                num_encoder_tokens=options.get("num_encoder_tokens", 0),
                total_computed_tokens=min(computed, self.max_model_len),
                num_local_computed_tokens=local,
                num_tokens_main_model=tokens,
            )
        )
