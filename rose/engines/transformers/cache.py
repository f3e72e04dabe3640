"""The KV cache of continuous batching, over slabs of rose's pool.

A *block* here is a block of rose, which transformers calls a sector. A *page* here is a block of
transformers; `blocks_per_sector` pages make a block.

A cache of transformers is one flat tensor that is addressed by sector ids only. Here the tensor of
a tenant is a view of the pool, and its `CachePool` allocates from rose's block allocator, so a slab
changes owner without copying a byte.
"""

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from transformers import PreTrainedConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.generation.continuous_batching.cache import PagedAttentionCache
from transformers.generation.continuous_batching.cache_allocators.cache_allocator import (
    CacheAllocator,
    compute_block_hash,
)
from transformers.generation.continuous_batching.distributed import DistributedHelper
from transformers.generation.continuous_batching.requests import RequestState

from rose.engines.lane import KVLane
from rose.engines.torch import as_tensor
from rose.engines.transformers.moves import move_blocks, rename_pages
from rose.engines.transformers.pool import SlabPool
from rose.engines.transformers.prefixes import SlabLedger
from rose.errors import check
from rose.executor import RolloutLane
from rose.memory import KVGeometry, Layout
from rose.units import ceil_div

# Alignment of a block in bytes, the same as that of transformers' sectors.
_ALIGNMENT: Final = 128
# Compaction pays off above this ratio of slabs in use to slabs that the same blocks would fill.
_HELD_OVER_NEEDED: Final = 1.1


def block_geometry(
    config: PreTrainedConfig, *, dtype: torch.dtype, cb_config: ContinuousBatchingConfig
) -> KVGeometry:
    """Return the geometry of a model's KV with one block size for all groups of layers.

    The geometry is read from a cache of one block, so it follows transformers' own rules.

    Args:
        config: configuration of the model; several attention types are allowed.
        dtype: dtype of the cache.
        cb_config: resolved continuous-batching configuration, with the page size.
    """
    cache = _one_block_cache(config, dtype, cb_config)
    tokens = min(
        cache.bytes_per_sector // allocator.bytes_per_block * allocator.tokens_per_page
        for allocator in cache.cache_allocators.values()
    )
    # With several attention types, a block belongs to one type at a time. The types may have
    # different numbers of layers, so a block counts as one layer.
    layers = config.num_hidden_layers if len(cache.cache_allocators) == 1 else 1
    return KVGeometry(
        layers=layers,
        block_tokens=tokens,
        bytes_per_token=cache.bytes_per_sector // tokens,
        layout=Layout.BLOCK_MAJOR,
    )


def _one_block_cache(
    config: PreTrainedConfig, dtype: torch.dtype, cb_config: ContinuousBatchingConfig
) -> PagedAttentionCache:
    one_block = copy.copy(cb_config)
    one_block.num_blocks = 1
    return PagedAttentionCache(
        config=config,
        continuous_batching_config=one_block,
        device="cpu",
        distributed_helper=DistributedHelper(None, cpu_group_timeout=None, tp_plan={}),
        dtype=dtype,
        model_supports_logits_to_keep=True,
    )


class VersionedCache(PagedAttentionCache):  # type: ignore[misc]  # transformers ships no types
    """A `PagedAttentionCache` that shares only prefixes computed with the current weights."""

    def __init__(self, **kwargs: Any) -> None:
        # Requests whose blocks must not be shared: they have KV of old weights, or are private.
        self._unshared: set[str] = set()
        self.matched: dict[str, int] = {}  # tokens of a prompt that were found, by request id
        super().__init__(**kwargs)

    def renew(self, version: int) -> None:
        """Hide all blocks written so far from requests that are admitted from now on.

        Running requests keep their blocks and go on; blocks that they complete later are not shared
        either, because these depend on old ones.

        Args:
            version: version of the new weights.
        """
        del version  # All old prefixes are dropped, so no prefix needs a version.
        self.evict_cached_blocks()
        for allocator in self.cache_allocators.values():
            self._unshared.update(allocator.block_table)
            allocator.ledger.hash_to_block.clear()
            allocator.ledger.block_to_hash.clear()
        self.pool.try_to_free_sectors()

    def keep_private(self, request_id: str) -> None:
        """Never share the blocks of this request, which will be submitted next."""
        self._unshared.add(request_id)

    def search_prefix_match(self, request_id: str, prompt_ids: list[int]) -> int:
        """Match a prompt with cached blocks as stock code does, and record the matched tokens."""
        self.matched[request_id] = matched = self._match(request_id, prompt_ids)
        return matched

    def _match(self, request_id: str, prompt_ids: list[int]) -> int:
        return int(super().search_prefix_match(request_id, prompt_ids))

    def free_blocks(self, request_id: str, no_cache: bool = False) -> None:
        """Free as stock code does. A request that is queued again gets new, sharable blocks."""
        super().free_blocks(request_id, no_cache=no_cache)
        self._unshared.discard(request_id)

    def mark_complete_blocks(self, state: RequestState, complete_blocks: dict[str, int]) -> None:
        """Offer completed blocks for reuse, unless they must not be shared."""
        if state.request_id not in self._unshared:
            super().mark_complete_blocks(state, complete_blocks)

    @property
    def is_append_only(self) -> bool:
        """True if a token's KV is never overwritten: false for the ring of a sliding window."""
        return all(allocator.supports_block_table for allocator in self.cache_allocators.values())

    @property
    def holds_tokens(self) -> int:
        """Number of tokens that fit in the whole cache."""
        return int(
            min(
                allocator.num_blocks * allocator.tokens_per_page
                for allocator in self.cache_allocators.values()
            )
        )


class SlabCache(VersionedCache):
    """A `PagedAttentionCache` over the slabs of one tenant.

    All types of attention share the blocks. Rose's allocator keeps a borrower's prefixes, in a
    namespace per version of the weights.
    Serving's prefixes count as blocks in use, so that their slabs are not lent.
    """

    def __init__(
        self,
        lane: KVLane,
        *,
        model: str,
        version: int,
        config: PreTrainedConfig,
        continuous_batching_config: ContinuousBatchingConfig,
        **kwargs: Any,
    ) -> None:
        """Build the stock cache with one temporary block, then lay it over `lane`.

        Args:
            lane: lane of the tenant.
            model: name that tells this model from others that use the lane.
            version: version of the model's weights.
            config: configuration of the model.
            continuous_batching_config: resolved configuration.
            kwargs: further arguments of the stock cache.
        """
        one_block = copy.copy(continuous_batching_config)
        one_block.num_blocks = 1
        super().__init__(config=config, continuous_batching_config=one_block, **kwargs)
        self.lane = lane
        self.pool = SlabPool(lane, len(self.cache_allocators))
        self._lay_out()
        # This number never changes, because the sizes of IO tensors depend on it. It covers all
        # memory that the tenant could ever have.
        lendable = lane.kv.lendable_bytes
        self.num_blocks = lendable // sum(
            allocator.bytes_per_block for allocator in self.cache_allocators.values()
        )
        self.max_tokens_read = max(
            lendable // self.bytes_per_sector * one.tokens_per_page * one.blocks_per_sector
            for one in self.cache_allocators.values()
        )
        self._ledger: SlabLedger | None = None
        only = next(iter(self.cache_allocators.values()))
        is_one_to_one = self.use_prefix_sharing and only.blocks_per_sector == 1
        if isinstance(lane, RolloutLane) and is_one_to_one and len(self.cache_allocators) == 1:
            self._ledger = SlabLedger(lane.kv.allocator, model=model, version=version)
            only.ledger = self._ledger

    def _lay_out(self) -> None:
        """Give each allocator the memory of the lane's blocks."""
        found = self.lane.kv.geometry.block_bytes
        check(
            found == self.bytes_per_sector,
            f"the lane's blocks have {found} bytes, the cache needs {self.bytes_per_sector}",
        )
        self.cache_tensor = as_tensor(self.lane.kv.flat(), self.device)
        # Row i is block i. The first two rows are null blocks, as in the stock cache.
        self._rows = self.cache_tensor.view(-1, found)
        self.num_sectors = len(self._rows) - 2
        for allocator in self.cache_allocators.values():
            allocator.register_cache_tensor(
                found, self.num_sectors * found, self.cache_tensor, self.pool
            )

    # ---- room

    def compute_free_capacity(self, relative: bool = True) -> int | float:
        """Return the free bytes, or their share of the tenant's memory if `relative`."""
        blocks, block_bytes = self.lane.kv.allocator, self.lane.kv.geometry.block_bytes
        free_bytes = int(blocks.free_blocks) * block_bytes + sum(
            int(self.pool.count_free_blocks(one.index) * one.bytes_per_block)
            for one in self.cache_allocators.values()
        )
        if not relative:
            return free_bytes
        own_bytes = int(blocks.capacity_blocks) * block_bytes
        return free_bytes / own_bytes if own_bytes else 0.0

    def can_store_request_tokens(
        self, state: RequestState, request_len: int, dry_run: bool = False
    ) -> bool:
        """Allocate blocks for a request's tokens; return False if there is too little memory.

        Before it returns False, this method requests more blocks from rose and drops cached
        prefixes. Idle slabs of a borrower may be taken at any moment, so free blocks count only
        after they were allocated. With `dry_run`, only count the free blocks.
        """
        allocators = self.cache_allocators.values()
        needed = [
            one.needs_new_sectors(state.request_id, state.current_len(), request_len)
            for one in allocators
        ]
        if dry_run:
            return self._has_free(sum(needed))
        if any(needed) and not (self._make_free(sum(needed)) and self.pool.take(needed)):
            return False
        for one in allocators:
            one.allocate_cache_to_request(state.request_id, state.current_len(), request_len)
        return True

    def make_free(self, share: float) -> bool:
        """Free a share of the tenant's memory, 0 to 1: first by a loan, then by dropping old cache.

        Returns:
            False if too little memory became free.
        """
        return self._make_free(math.ceil(share * self.lane.kv.allocator.capacity_blocks))

    def _has_free(self, blocks: int) -> bool:
        return self.pool.num_free_sectors >= blocks

    def _make_free(self, blocks: int) -> bool:
        """Free this many blocks: by a loan, or else by dropping cache."""
        if self.lane.ensure(blocks + int(self.lane.kv.allocator.cached_blocks)):
            return True
        return self._has_free(blocks) or self._evict_oldest(blocks)

    def _evict_oldest(self, blocks: int) -> bool:
        """Drop cached prefix blocks, oldest first, until there is room; False if that fails."""
        for allocator in self.cache_allocators.values():
            for block in list(allocator.ledger.cached_blocks):
                if self._has_free(blocks):
                    return True
                self._forget(allocator, [block])
        return self._has_free(blocks)

    def _forget(self, allocator: CacheAllocator, blocks: list[int]) -> None:
        ledger = allocator.ledger
        for block in blocks:
            ledger.cached_blocks.pop(block)
            ledger.hash_to_block.pop(ledger.block_to_hash.pop(block))
        self.pool.free_blocks(allocator.index, blocks)

    # ---- prefixes

    def renew(self, version: int) -> None:
        """Renew as `VersionedCache` does; a borrower's prefixes get another namespace."""
        if self._ledger is None:
            super().renew(version)
            return
        for allocator in self.cache_allocators.values():
            self._unshared.update(allocator.block_table)
        self._ledger.renew(version)

    def _match(self, request_id: str, prompt_ids: list[int]) -> int:
        """Match a prompt with cached blocks.

        For a borrower, references to the blocks are taken at once, because serving may take the
        slabs of unused blocks at any moment.
        """
        if self._ledger is None:
            return super()._match(request_id, prompt_ids)
        (allocator,) = self.cache_allocators.values()
        size = int(allocator.tokens_per_page)
        hashes: list[int] = []
        for first in range(0, (len(prompt_ids) - 1) // size * size, size):
            block_hash = compute_block_hash(
                hashes[-1] if hashes else None, prompt_ids[first : first + size]
            )
            if self._ledger.hash_to_block.get(block_hash) is None:
                break
            hashes.append(block_hash)
        blocks = self._ledger.acquire_prefix(hashes) if hashes else []
        if blocks:
            allocator.block_table[request_id] = blocks
        return len(blocks) * size

    # ---- slabs

    def blocks_of(self, request_ids: Sequence[str]) -> set[int]:
        """Return the blocks with pages of these requests."""
        return {
            page // allocator.blocks_per_sector
            for allocator in self.cache_allocators.values()
            for request_id in request_ids
            for page in allocator.block_table.get(request_id, ())
        }

    def slabs_of(self, request_id: str) -> frozenset[int]:
        """Return the slabs with blocks of `request_id`."""
        blocks = list(self.blocks_of([request_id]))
        return frozenset(self.lane.kv.allocator.slabs_of(blocks))

    def drop_cached_in(self, slabs: frozenset[int]) -> None:
        """Drop unused prefix blocks in `slabs`."""
        for allocator in self.cache_allocators.values():
            pages = list(allocator.ledger.cached_blocks)
            blocks = [page // allocator.blocks_per_sector for page in pages]
            found = zip(pages, self.lane.kv.allocator.slabs_of(blocks), strict=True)
            leaving = [page for page, slab in found if slab in slabs]
            if leaving:
                self._forget(allocator, leaving)

    def move(
        self, slabs: Sequence[int] | None, *, bytes_max: int, settle: Callable[[], None]
    ) -> int:
        """Move KV out of `slabs`, or compact it, with `move_blocks`. Call between two steps.

        Args:
            slabs: slabs to empty; None for the sparsest slabs.
            bytes_max: most bytes to copy.
            settle: function that waits until a copy is complete.

        Returns:
            The number of bytes moved.
        """
        kv = self.lane.kv
        limit = bytes_max // kv.geometry.block_bytes
        moved = move_blocks(kv, self._rows, slabs, limit=limit, settle=settle)
        if moved:
            for allocator in self.cache_allocators.values():
                rename_pages(allocator, moved)
                self.pool.moved(allocator.index, moved)
        return len(moved) * kv.geometry.block_bytes

    @property
    def is_sparse(self) -> bool:
        """True if over 1.1 times as many slabs are in use as used and cached blocks would fill.

        Cached blocks count, because compaction would overwrite cached prefixes, and turns that
        return from a tool need these.
        """
        kv = self.lane.kv
        filled = int(kv.allocator.used_blocks) + int(kv.allocator.cached_blocks)
        needed = ceil_div(filled, kv.blocks_per_slab)
        return int(kv.allocator.slabs_in_use) > _HELD_OVER_NEEDED * needed
