"""The KV cache of continuous batching, laid over slabs of rose's pool.

A cache of transformers is one flat tensor that is addressed by sector ids only. A tenant's tensor
is a view of the pool, and its `CachePool` hands out sectors from rose's block allocator, so a slab
changes owner without a byte being moved: one rose block is one sector.
"""

import copy
import math
from typing import Any

import torch
from transformers import PreTrainedConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.generation.continuous_batching.cache import PagedAttentionCache
from transformers.generation.continuous_batching.cache_allocators.cache_allocator import (
    CacheAllocator,
)
from transformers.generation.continuous_batching.cache_allocators.cache_pool import (
    CachePool,
    RegularTrees,
)
from transformers.generation.continuous_batching.distributed import DistributedHelper
from transformers.generation.continuous_batching.requests import RequestState

from rose.engines.lane import KVLane
from rose.engines.torch import as_tensor
from rose.errors import InternalError, check
from rose.memory import KVGeometry, Layout


def sector_geometry(
    config: PreTrainedConfig, *, dtype: torch.dtype, cb_config: ContinuousBatchingConfig
) -> KVGeometry:
    """Return the geometry of a model's KV in sectors, the unit transformers allocates.

    Found by building a cache of one block and asking it, so it follows transformers' own rules.

    Args:
        config: of the model; several attention types are allowed.
        dtype: of the cache.
        cb_config: a resolved continuous-batching configuration; gives the page size.
    """
    one_block = copy.copy(cb_config)
    one_block.num_blocks = 1
    cache = PagedAttentionCache(
        config=config,
        continuous_batching_config=one_block,
        device="cpu",
        distributed_helper=DistributedHelper(None, cpu_group_timeout=None, tp_plan={}),
        dtype=dtype,
        model_supports_logits_to_keep=True,
    )
    tokens = min(
        cache.bytes_per_sector // allocator.bytes_per_block * allocator.tokens_per_page
        for allocator in cache.cache_allocators.values()
    )
    return KVGeometry(
        layers=config.num_hidden_layers,
        block_tokens=tokens,
        bytes_per_token=cache.bytes_per_sector // tokens,
        layout=Layout.BLOCK_MAJOR,
    )


class SlabPool(CachePool):  # type: ignore[misc]  # transformers ships no types
    """A `CachePool` whose free sectors are the free blocks of rose's allocator."""

    def __init__(self, lane: KVLane, num_sectors: int, num_allocators: int) -> None:
        """Start with no sector; they come and go with the slabs of `lane`."""
        self.lane = lane
        self.space = lane.kv
        super().__init__(num_sectors, num_allocators)

    def reset(self) -> None:
        """Give every free sector back to rose; callers free all requests first."""
        if hasattr(self, "_free_blocks"):
            self.try_to_free_sectors()
        self._free_blocks = [RegularTrees(count) for count in self.blocks_per_sector]

    @property
    def free_sectors(self) -> range:
        """The number of free sectors, in the form stock code takes the length of."""
        return range(self.space.allocator.free_blocks)

    @property
    def num_free_sectors(self) -> int:
        """How many sectors the tenant's slabs have left."""
        return int(self.space.allocator.free_blocks)

    def allocate_sector(self, index: int) -> None:
        """Take one sector, from the fullest slab, for the allocator `index`.

        By the lane, at every sector: serving's lane sees to it that enough is left, also when a
        batch takes its blocks long before or after a step.
        """
        sectors = self.lane.alloc(1)
        if sectors is None:
            raise InternalError("a sector was asked for that the caller had not counted")
        self._free_blocks[index].add_tree(sectors[0])

    def try_to_free_sectors(self) -> None:
        """Hand sectors without a live block back; an emptied slab on revocation leaves at once."""
        for trees in self._free_blocks:
            roots = trees.delete_full_trees()
            if roots:
                self.space.allocator.free(roots)


class VersionedCache(PagedAttentionCache):  # type: ignore[misc]  # transformers ships no types
    """A `PagedAttentionCache` whose prefixes are those of the weights in use."""

    def __init__(self, **kwargs: Any) -> None:
        """Build the stock cache."""
        self._of_old_weights: set[str] = set()
        super().__init__(**kwargs)

    def renew(self) -> None:
        """Make sure that no block written so far is given to a request admitted from now on.

        Requests that have blocks keep them and go on; what they complete later is not shared
        either, because it was computed from those blocks.
        """
        self.evict_cached_blocks()
        for allocator in self.cache_allocators.values():
            self._of_old_weights.update(allocator.block_table)
            allocator.ledger.hash_to_block.clear()
            allocator.ledger.block_to_hash.clear()
        self.pool.try_to_free_sectors()

    def free_blocks(self, request_id: str, no_cache: bool = False) -> None:
        """Free as stock does; should the request come again, all its blocks will be new."""
        super().free_blocks(request_id, no_cache=no_cache)
        self._of_old_weights.discard(request_id)

    def mark_complete_blocks(self, state: RequestState, complete_blocks: dict[str, int]) -> None:
        """Offer the blocks that a step completed for reuse, unless old weights are in them."""
        if state.request_id not in self._of_old_weights:
            super().mark_complete_blocks(state, complete_blocks)

    @property
    def holds_tokens(self) -> int:
        """How many tokens fit the whole cache."""
        return int(
            min(
                allocator.num_blocks * allocator.tokens_per_page
                for allocator in self.cache_allocators.values()
            )
        )


class SlabCache(VersionedCache):
    """A `PagedAttentionCache` over the slabs of one tenant."""

    def __init__(
        self,
        lane: KVLane,
        *,
        config: PreTrainedConfig,
        continuous_batching_config: ContinuousBatchingConfig,
        **kwargs: Any,
    ) -> None:
        """Build the stock cache with one throw-away block, then lay it over `lane.kv`."""
        one_block = copy.copy(continuous_batching_config)
        one_block.num_blocks = 1
        super().__init__(config=config, continuous_batching_config=one_block, **kwargs)
        self.lane = lane
        space = lane.kv
        sector_bytes = self.bytes_per_sector
        check(
            sector_bytes == space.geometry.block_bytes,
            f"the cache has sectors of {sector_bytes} bytes, the lane {space.geometry.block_bytes}",
        )
        self.cache_tensor = as_tensor(space.flat(), self.device)
        self.num_sectors = self.cache_tensor.numel() // sector_bytes - 2
        self.pool = SlabPool(lane, self.num_sectors, len(self.cache_allocators))
        for allocator in self.cache_allocators.values():
            allocator.register_cache_tensor(
                sector_bytes, self.num_sectors * sector_bytes, self.cache_tensor, self.pool
            )
        # Sized for the largest possible holding and constant: IO tensors depend on it.
        sectors = space.lendable_bytes // sector_bytes
        self.num_blocks = space.lendable_bytes // sum(
            allocator.bytes_per_block for allocator in self.cache_allocators.values()
        )
        self.max_tokens_read = max(
            allocator.tokens_per_page * allocator.blocks_per_sector * sectors
            for allocator in self.cache_allocators.values()
        )

    @property
    def is_append_only(self) -> bool:
        """Whether a token's KV stays where it is: not so with a sliding window's ring."""
        return all(allocator.supports_block_table for allocator in self.cache_allocators.values())

    def compute_free_capacity(self, relative: bool = True) -> int | float:
        """Return free bytes, or their share of what the tenant owns (stock: of the whole view)."""
        free_bytes = super().compute_free_capacity(relative=False)
        if not relative:
            return int(free_bytes)
        own_bytes = self.lane.kv.allocator.capacity_blocks * self.bytes_per_sector
        return free_bytes / own_bytes if own_bytes else 0.0

    def can_store_request_tokens(
        self, state: RequestState, request_len: int, dry_run: bool = False
    ) -> bool:
        """Ask rose for more blocks, then give up prefix cache, before saying no."""
        if super().can_store_request_tokens(state, request_len, dry_run):
            return True
        if dry_run:
            return False
        needed = sum(
            allocator.needs_new_sectors(state.request_id, state.current_len(), request_len)
            for allocator in self.cache_allocators.values()
        )
        if not self.lane.ensure(needed) and not self._evict_oldest(needed):
            return False
        return bool(super().can_store_request_tokens(state, request_len))

    def make_free(self, share: float) -> bool:
        """Try to have `share` of what the tenant owns free; grows first, then drops old cache."""
        wanted = math.ceil(share * self.lane.kv.allocator.capacity_blocks)
        return self.lane.ensure(wanted) or self._evict_oldest(wanted)

    def _evict_oldest(self, sectors: int) -> bool:
        """Drop cached prefix blocks, oldest first, until `sectors` are free; False if too few."""
        for allocator in self.cache_allocators.values():
            for block in list(allocator.ledger.cached_blocks):
                if self.pool.num_free_sectors >= sectors:
                    return True
                self._forget(allocator, [block])
                self.pool.try_to_free_sectors()
        return bool(self.pool.num_free_sectors >= sectors)

    def _forget(self, allocator: CacheAllocator, blocks: list[int]) -> None:
        ledger = allocator.ledger
        for block in blocks:
            ledger.cached_blocks.pop(block)
            ledger.hash_to_block.pop(ledger.block_to_hash.pop(block))
        self.pool.free_blocks(allocator.index, blocks)

    def sectors_of(self, request_id: str) -> list[int]:
        """Return the sectors in which `request_id` has blocks, with repetitions."""
        return [
            block // allocator.blocks_per_sector
            for allocator in self.cache_allocators.values()
            for block in allocator.block_table.get(request_id, ())
        ]

    def drop_cached_in(self, slabs: frozenset[int]) -> None:
        """Forget prefix blocks that no request uses and that lie in `slabs`."""
        slab_of = self.lane.kv.allocator.slab_of
        for allocator in self.cache_allocators.values():
            leaving = [
                block
                for block in allocator.ledger.cached_blocks
                if slab_of(block // allocator.blocks_per_sector) in slabs
            ]
            if leaving:
                self._forget(allocator, leaving)
