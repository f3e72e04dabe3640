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

# vLLM's hash of a block, followed by the number of the block's KV cache group.
GroupHash: TypeAlias = bytes
_KEY_BYTES: Final = 16


def key_of(group_hash: GroupHash) -> bytes:
    """Return the allocator's key, 16 bytes, for a hash of any length."""
    return blake2b(group_hash, digest_size=_KEY_BYTES).digest()


class LeasedBlock(KVCacheBlock):  # type: ignore[misc]  # vLLM is not followed
    """A `KVCacheBlock` whose reference count is kept by the allocator."""

    __slots__ = ("_allocator",)

    def __init__(
        self, block_id: int, *, pool: "LeasedBlockPool", allocator: BlockAllocator
    ) -> None:
        """Called by the pool, once per id."""
        self._allocator: BlockAllocator | None = None
        super().__init__(block_id, pool=pool)
        self._allocator = allocator

    @property
    def ref_cnt(self) -> int:
        """Number of requests that hold the block. vLLM also assigns to it."""
        return 0 if self._allocator is None else self._allocator.references(self.block_id)

    @ref_cnt.setter
    def ref_cnt(self, references: int) -> None:
        if self._allocator is None:
            return  # vLLM's constructor assigns the initial zero.
        more = references - self.ref_cnt
        if more > 0:
            self._allocator.share([self.block_id] * more)
        elif more < 0:
            self._allocator.free([self.block_id] * -more)


class _Blocks:
    """The pool's blocks by id. Each is created on first access.

    Ids count in units of one layer's block, so a tenant receives only few of the possible ids.
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
    """vLLM's map from hash to block, kept by the allocator. A block has at most one key.

    A key names at most one block.
    """

    def __init__(self, allocator: BlockAllocator, blocks: _Blocks) -> None:
        self._allocator = allocator
        self._blocks = blocks

    def get_one_block(self, key: GroupHash) -> LeasedBlock | None:
        found = self._allocator.lookup(key_of(key))
        return self._blocks[found[0]] if found else None

    def contain(self, key: GroupHash, block_id: int) -> bool:
        return self._allocator.lookup(key_of(key)) == [block_id]

    def insert(self, key: GroupHash, block: LeasedBlock) -> None:
        # vLLM's own map keeps every block of a hash and returns the first. Here the first block
        # keeps the key, and later blocks get none.
        self._allocator.publish([block.block_id], key_of(key))

    def pop(self, key: GroupHash, block_id: int) -> LeasedBlock | None:
        found = self._allocator.lookup(key_of(key))
        if found and found != [block_id]:
            return None  # The key names another block, which stays cached.
        self._allocator.forget(found)
        return self._blocks[block_id]


class LeasedBlockPool(BlockPool):  # type: ignore[misc]  # vLLM is not followed
    """A `BlockPool` whose free blocks are in the slabs of its tenant.

    Hashes, events and metrics are inherited from vLLM. References, free blocks and the prefix cache
    are kept by the allocator. vLLM's order of eviction therefore does not apply: the allocator
    evicts the cached blocks of a whole slab at once.

    `get_num_free_blocks` counts blocks that are free now; `ensure` requests more. Only the
    scheduler's thread, or a thread that holds the scheduler's lock, may call a method.

    Args:
        lane: lane of the tenant.
        num_gpu_blocks: number of blocks configured in vLLM, including the null block.
        enable_caching: True to keep prefixes in the cache.
        hash_block_size: tokens per hash.
        enable_kv_cache_events: True to record KV cache events for `take_events`.
        metrics_collector: vLLM's collector of block metrics; None: no metrics.
        medium: name of the memory in events.
        options: further arguments of vLLM's `BlockPool`, which differ between versions.
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
        """Build vLLM's pool with only the null block; all other blocks come from `lane.kv`."""
        super().__init__(
            num_gpu_blocks=1,
            enable_caching=enable_caching,
            hash_block_size=hash_block_size,
            enable_kv_cache_events=enable_kv_cache_events,
            metrics_collector=metrics_collector,
            medium=medium,
            **options,
        )
        null_id = self.null_block.block_id
        check(null_id == lane.kv.null_block, f"vLLM's null block has the id {null_id}")
        del self.free_block_queue  # It is always empty, so any use would be a bug.
        self.num_gpu_blocks = num_gpu_blocks
        self._lane = lane
        self._allocator = lane.kv.allocator
        self.blocks = _Blocks(self._make_block)
        self.cached_block_hash_to_block = _PrefixIndex(self._allocator, self.blocks)

    def _make_block(self, block_id: int) -> LeasedBlock:
        return LeasedBlock(block_id, pool=self, allocator=self._allocator)

    def ensure(self, blocks: int) -> bool:
        """Make `blocks` blocks free by a revocation or a grant; return False if that fails."""
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
            ValueError: fewer than `num_blocks` are free. vLLM's own pool raises the same error.
        """
        ids = self._lane.alloc(num_blocks)
        if ids is None:
            raise ValueError(f"Cannot get {num_blocks} free blocks from the pool")
        blocks = [self.blocks[block_id] for block_id in ids]
        for block in blocks:
            # The allocator has forgotten the block's previous content. vLLM drops the content's
            # hash and metrics here, and reports the eviction.
            if block.block_hash is not None or self.metrics_collector:
                self._maybe_evict_cached_block(block)
            if self.metrics_collector:
                self.metrics_collector.on_block_allocated(block)
        return blocks

    def touch(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Add a reference to each block. A cached block without references is in use again."""
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
        """Refuse, because a block without references may leave the tenant when its slab leaves.

        Raises:
            InvalidArgument: always.
        """
        del blocks, on_reuse
        raise InvalidArgument(
            "HiSparse cannot run under rose: it reads blocks after it has freed them, and rose may "
            "have lent them by then; start vLLM without HiSparse"
        )

    def cache_partial_block(self, request: Request, block: KVCacheBlock, **entry: Any) -> Any:
        """Cache a block under a prefix that ends inside the block, unless the block has a hash.

        vLLM's own pool gives such a block several hashes; here the block keeps its first hash.
        """
        if block.block_hash is not None and not entry.get("replace_existing_hashes", False):
            return None
        return super().cache_partial_block(request=request, block=block, **entry)

    def evict_blocks(self, block_ids: set[int]) -> None:
        """Remove blocks from the prefix cache; blocks in use stay with their requests."""
        for block_id in block_ids:
            self._maybe_evict_cached_block(self.blocks[block_id])

    def reset_prefix_cache(self) -> bool:
        """Forget all prefixes and return True; while a block is in use, only return False."""
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
        """Return the events since the last call; blocks that left with a slab count as removed."""
        if self.enable_kv_cache_events:
            self._note_lost_prefixes()
        events: list[Any] = super().take_events()
        return events

    def _note_lost_prefixes(self) -> None:
        index = self.cached_block_hash_to_block
        for block in self.blocks:
            if block.block_hash is not None and index.get_one_block(block.block_hash) is None:
                self._maybe_evict_cached_block(block)
