"""vLLM's `BlockPool` over the block allocator of a tenant."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Any, Final, TypeAlias

from vllm.distributed.kv_events import MEDIUM_GPU, AllBlocksCleared
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_metrics import KVCacheMetricsCollector
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.request import Request

from rose._core import BlockAllocator
from rose.engines.lane import KVLane
from rose.errors import InvalidArgument, check

# A hash of vLLM's, and the number of its KV cache group.
GroupHash: TypeAlias = bytes
_KEY_BYTES: Final = 16


def key_of(group_hash: GroupHash) -> bytes:
    """Return the allocator's key for a hash of any length."""
    return blake2b(group_hash, digest_size=_KEY_BYTES).digest()


class LeasedBlock(KVCacheBlock):  # type: ignore[misc]  # vLLM is not followed
    """A `KVCacheBlock` whose reference count is the allocator's."""

    __slots__ = ("_allocator",)

    def __init__(
        self, block_id: int, *, pool: "LeasedBlockPool", allocator: BlockAllocator
    ) -> None:
        """Made by the pool, once per id."""
        self._allocator: BlockAllocator | None = None
        super().__init__(block_id, pool=pool)
        self._allocator = allocator

    @property
    def ref_cnt(self) -> int:
        """Number of requests that hold the block; vLLM adds to it in places."""
        return 0 if self._allocator is None else self._allocator.references(self.block_id)

    @ref_cnt.setter
    def ref_cnt(self, references: int) -> None:
        if self._allocator is None:
            return  # The initial zero of vLLM's constructor.
        more = references - self.ref_cnt
        if more > 0:
            self._allocator.share([self.block_id] * more)
        elif more < 0:
            self._allocator.free([self.block_id] * -more)


class _Blocks:
    """The blocks by id, each created on first access, since a tenant ever gets few of the ids.

    Ids count in steps of a layer's block, so there are far more ids than blocks.
    """

    def __init__(self, make: Callable[[int], LeasedBlock]) -> None:
        self._make = make
        self._made: dict[int, LeasedBlock] = {}

    def __getitem__(self, block_id: int) -> LeasedBlock:
        block = self._made.get(block_id)
        if block is None:
            block = self._made[block_id] = self._make(block_id)
        return block

    def __iter__(self) -> Iterator[LeasedBlock]:
        return iter(list(self._made.values()))


class _PrefixIndex:
    """vLLM's map from hash to block, kept by the allocator: one key per block and vice versa."""

    def __init__(self, allocator: BlockAllocator, blocks: _Blocks) -> None:
        self._allocator = allocator
        self._blocks = blocks

    def get_one_block(self, key: GroupHash) -> LeasedBlock | None:
        found = self._allocator.lookup(key_of(key))
        return self._blocks[found[0]] if found else None

    def contain(self, key: GroupHash, block_id: int) -> bool:
        return self._allocator.lookup(key_of(key)) == [block_id]

    def insert(self, key: GroupHash, block: LeasedBlock) -> None:
        # vLLM keeps duplicates and returns the first, which keeps the key here.
        self._allocator.publish([block.block_id], key_of(key))

    def pop(self, key: GroupHash, block_id: int) -> LeasedBlock | None:
        found = self._allocator.lookup(key_of(key))
        if found and found != [block_id]:
            return None  # A duplicate: its hash stays cached.
        self._allocator.forget(found)
        return self._blocks[block_id]


class LeasedBlockPool(BlockPool):  # type: ignore[misc]  # vLLM is not followed
    """A `BlockPool` whose free blocks are in the slabs of its tenant.

    vLLM's additions to a block's life (hashes, events, metrics) are inherited; references, free
    blocks and prefix cache are the allocator's. So vLLM's order of eviction does not apply: the
    allocator prefers to empty slabs.

    `get_num_free_blocks` counts blocks that are free now; `ensure` requests more. For the
    scheduler's thread, or under its lock.

    Args:
        lane: lane of the tenant.
        num_gpu_blocks: number of blocks configured in vLLM, including the null block.
        enable_caching: whether blocks are cached.
        hash_block_size: tokens per hash.
        enable_kv_cache_events: whether `take_events` reports them.
        metrics_collector: collector of vLLM, or None.
        medium: name of the memory in events.
        options: further arguments of vLLM's pool, which depend on its version.
    """

    def __init__(
        self,
        lane: KVLane,
        *,
        num_gpu_blocks: int,
        enable_caching: bool,
        hash_block_size: int,
        enable_kv_cache_events: bool = False,
        metrics_collector: KVCacheMetricsCollector | None = None,
        medium: str = MEDIUM_GPU,
        **options: Any,
    ) -> None:
        """Build vLLM's pool with the null block alone, and lay it over `lane.kv`."""
        super().__init__(
            num_gpu_blocks=1,
            enable_caching=enable_caching,
            hash_block_size=hash_block_size,
            enable_kv_cache_events=enable_kv_cache_events,
            metrics_collector=metrics_collector,
            medium=medium,
            **options,
        )
        check(self.null_block.block_id == lane.kv.null_block, "the null block has another id")
        del self.free_block_queue  # Nobody may use a queue that is always empty.
        self.num_gpu_blocks = num_gpu_blocks
        self._lane = lane
        self._allocator = lane.kv.allocator
        self.blocks = _Blocks(self._make_block)
        self.cached_block_hash_to_block = _PrefixIndex(self._allocator, self.blocks)

    def _make_block(self, block_id: int) -> LeasedBlock:
        return LeasedBlock(block_id, pool=self, allocator=self._allocator)

    def ensure(self, blocks: int) -> bool:
        """Try to have `blocks` free blocks: by revoking slabs, or by a grant."""
        return self._lane.ensure(blocks)

    # ---- vLLM's contract ------------------------------------------------------------------------

    def get_num_free_blocks(self) -> int:
        """Return the number of blocks that `get_new_blocks` could return now."""
        return self._allocator.free_blocks

    def get_usage(self) -> float:
        """Return the used share of the configured blocks, between 0 and 1."""
        most = self.num_gpu_blocks - 1
        return self._allocator.used_blocks / most if most else 0.0

    def get_new_blocks(self, num_blocks: int) -> list[LeasedBlock]:
        """Take blocks with one reference each.

        Raises:
            ValueError: fewer are free; vLLM's own error.
        """
        ids = self._lane.alloc(num_blocks)
        if ids is None:
            raise ValueError(f"Cannot get {num_blocks} free blocks from the pool")
        blocks = [self.blocks[block_id] for block_id in ids]
        for block in blocks:
            # The hash of its previous use, which the allocator has forgotten.
            if block.block_hash is not None or self.metrics_collector:
                self._maybe_evict_cached_block(block)
            if self.metrics_collector:
                self.metrics_collector.on_block_allocated(block)
        return blocks

    def touch(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Add a reference to each block; unused cached ones are in use again."""
        shared = [block for block in blocks if not block.is_null]
        self._allocator.share([block.block_id for block in shared])
        if self.metrics_collector:
            for block in shared:
                self.metrics_collector.on_block_accessed(block)

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        """Drop one reference of each block; the allocator decides the order of reuse."""
        ours: list[int] = []
        for block in ordered_blocks:
            if block.is_null:
                continue
            if block.pool is self:
                ours.append(block.block_id)
            else:
                block.pool.free_blocks([block])
        self._allocator.free(ours)

    def unpin_blocks(
        self, blocks: Iterable[KVCacheBlock], on_reuse: Callable[[KVCacheBlock], None]
    ) -> None:
        """Refuse: an unused block may leave with its slab, without notice.

        Raises:
            InvalidArgument: always.
        """
        del blocks, on_reuse
        raise InvalidArgument("HiSparse reads blocks after it gave them back: lend it no memory")

    def cache_partial_block(self, request: Request, block: KVCacheBlock, **entry: Any) -> Any:
        """Cache a block under a prefix that ends inside it, unless it is cached already.

        vLLM would keep several keys; here only the first is cached.
        """
        if block.block_hash is not None and not entry.get("replace_existing_hashes", False):
            return None
        return super().cache_partial_block(request=request, block=block, **entry)

    def evict_blocks(self, block_ids: set[int]) -> None:
        """Remove blocks from the prefix cache; blocks in use stay with their requests."""
        for block_id in block_ids:
            self._maybe_evict_cached_block(self.blocks[block_id])

    def reset_prefix_cache(self) -> bool:
        """Forget all prefixes; False, and nothing forgotten, while a block is in use."""
        if self._allocator.used_blocks:
            return False
        self._allocator.forget_all()
        self.cached_block_hashes_by_block.clear()
        for block in self.blocks:
            block.reset_hash()
        if self.metrics_collector:
            self.metrics_collector.reset()
        if self.enable_kv_cache_events:
            self.kv_event_queue.append(AllBlocksCleared())
        return True

    def take_events(self) -> list[Any]:
        """Return the events since the last call, including prefixes that left with a slab."""
        if self.enable_kv_cache_events:
            self._note_lost_prefixes()
        events: list[Any] = super().take_events()
        return events

    def _note_lost_prefixes(self) -> None:
        index = self.cached_block_hash_to_block
        for block in self.blocks:
            if block.block_hash is not None and index.get_one_block(block.block_hash) is None:
                self._maybe_evict_cached_block(block)
