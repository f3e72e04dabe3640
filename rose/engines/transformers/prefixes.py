"""The prefixes of a borrower's KV, kept by rose's allocator under the weights they came from."""

from collections.abc import Sequence

from transformers.generation.continuous_batching.cache_allocators.cache_allocator import BlockLedger

from rose._core import BlockAllocator

_KEY_BYTES = 16


def key_of(block_hash: int) -> bytes:
    """Return the allocator's key for a hash of transformers, which has 8 bytes."""
    return block_hash.to_bytes(_KEY_BYTES, "little")


class PrefixIndex:
    """From hash to block, as stock code looks it up: only what the weights in use have computed."""

    def __init__(self, blocks: BlockAllocator) -> None:
        """Look into `blocks`."""
        self._blocks = blocks

    def __len__(self) -> int:
        """How many blocks are kept that no request uses."""
        return int(self._blocks.cached_blocks)

    def get(self, block_hash: int) -> int | None:
        """Return the block of this hash, which may be gone at the next moment, or None."""
        found = self._blocks.lookup(key_of(block_hash))
        return found[0] if found else None

    def clear(self) -> None:
        """Forget all prefixes."""
        self._blocks.forget_all()


class SlabLedger(BlockLedger):  # type: ignore[misc]  # transformers ships no types
    """A `BlockLedger` whose references and prefixes are the allocator's: one block is one sector.

    A prefix that no request uses counts as free memory, and goes with its slab when serving wants
    that back. Each namespace is a model at one version of its weights: after `renew` nothing that
    was kept before is found, whatever still uses it.

    For the thread that holds the borrower's books.

    Args:
        blocks: of the lane.
        model: what tells this model from others that had the lane before.
        version: of its weights.
    """

    def __init__(self, blocks: BlockAllocator, *, model: str, version: int) -> None:
        super().__init__()
        self._blocks = blocks
        self._model = model
        self._renewals = 0
        # Two requests have computed the same block: the second one's hold on the first one's.
        self._claimed: int | None = None
        self.hash_to_block = PrefixIndex(blocks)
        blocks.forget_all()
        self._enter(version)

    def _enter(self, version: int) -> None:
        # Counted too: whoever names two sets of weights alike must not find the other's KV.
        self._blocks.set_cache_namespace((f"{self._model}#{self._renewals}", version))

    def renew(self, version: int) -> None:
        """Let the prefixes be those of other weights."""
        self._renewals += 1
        self.block_to_hash.clear()
        self._enter(version)

    def acquire_prefix(self, hashes: Sequence[int]) -> list[int]:
        """Take a reference on each block of the longest prefix that is there."""
        blocks = self._blocks.acquire(b"".join(map(key_of, hashes)))
        self.block_to_hash.update(zip(blocks, hashes, strict=False))
        return blocks

    def acquire(self, block_id: int) -> None:
        """Take one more reference on a block."""
        if block_id == self._claimed:
            self._claimed = None
            return
        self._blocks.share([block_id])

    def release(self, block_id: int, no_cache: bool = False) -> bool:
        """Drop a reference; True if it is the last, which the pool then drops.

        The allocator keeps the block if it has a key, and with `no_cache` it has none any more.
        """
        if self._blocks.references(block_id) > 1:
            self._blocks.free([block_id])
            return False
        if no_cache:
            self._blocks.forget([block_id])
        self.block_to_hash.pop(block_id, None)
        return True

    def register_new_hash(self, block_id: int, block_hash: int) -> int | None:
        """Give a block its key, or return the block that has it, held for who calls `acquire`."""
        key = key_of(block_hash)
        found = self._blocks.acquire(key)
        if not found:
            self._blocks.publish([block_id], key)
            self.block_to_hash[block_id] = block_hash
            return None
        (self._claimed,) = found
        self.block_to_hash[found[0]] = block_hash
        return found[0]

    def evict_cached_blocks(self) -> list[int]:
        """Return none: what is kept counts as free already, and goes when its room is needed."""
        return []

    def reset(self) -> None:
        """Forget all prefixes."""
        super().reset()
        self._claimed = None
