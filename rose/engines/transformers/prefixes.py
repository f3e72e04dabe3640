"""The prefixes of a borrower's KV, kept by rose's allocator per version of the weights."""

from collections.abc import Sequence

from transformers.generation.continuous_batching.cache_allocators.cache_allocator import BlockLedger

from rose._core import BlockAllocator

_KEY_BYTES = 16


def key_of(block_hash: int) -> bytes:
    """Return the allocator's key for an 8-byte hash of transformers."""
    return block_hash.to_bytes(_KEY_BYTES, "little")


class PrefixIndex:
    """Map from hash to block for stock code, restricted to blocks of the current weights."""

    def __init__(self, blocks: BlockAllocator) -> None:
        self._blocks = blocks

    def __len__(self) -> int:
        """Return the number of cached blocks that no request uses."""
        return int(self._blocks.cached_blocks)

    def get(self, block_hash: int) -> int | None:
        """Return the block of this hash, or None; the block may vanish at any moment."""
        found = self._blocks.lookup(key_of(block_hash))
        return found[0] if found else None

    def clear(self) -> None:
        """Forget all prefixes."""
        self._blocks.forget_all()


class SlabLedger(BlockLedger):  # type: ignore[misc]  # transformers ships no types
    """A `BlockLedger` that uses the references and prefixes of rose's allocator.

    A block of transformers is one block of rose here. An unused prefix counts as free memory, and
    is dropped when serving takes its slab. A namespace is a model at one version of its weights:
    after `renew`, earlier prefixes are not found, even if requests still use their blocks.

    For the thread that holds the borrower's lock.

    Args:
        blocks: allocator of the lane.
        model: name that tells this model from others that use the lane.
        version: version of the model's weights.
    """

    def __init__(self, blocks: BlockAllocator, *, model: str, version: int) -> None:
        super().__init__()
        self._blocks = blocks
        self._model = model
        self._renewals = 0
        # Set if two requests have computed the same block: then this is the block of the first
        # request. The second request will use it, and already has a reference to it.
        self._claimed: int | None = None
        self.hash_to_block = PrefixIndex(blocks)
        blocks.forget_all()
        self._enter(version)

    def _enter(self, version: int) -> None:
        # The namespace contains the number of renewals, so that different weights with the same
        # version number share no KV.
        self._blocks.set_cache_namespace((f"{self._model}#{self._renewals}", version))

    def renew(self, version: int) -> None:
        """Switch to the prefixes of the weights of `version`."""
        self._renewals += 1
        self.block_to_hash.clear()
        self._enter(version)

    def acquire_prefix(self, hashes: Sequence[int]) -> list[int]:
        """Take a reference on each block of the longest cached prefix."""
        blocks = self._blocks.acquire(b"".join(map(key_of, hashes)))
        self.block_to_hash.update(zip(blocks, hashes, strict=False))
        return blocks

    def acquire(self, block_id: int) -> None:
        """Take another reference on a block."""
        if block_id == self._claimed:
            self._claimed = None
            return
        self._blocks.share([block_id])

    def release(self, block_id: int, no_cache: bool = False) -> bool:
        """Drop a reference on a block and return False, unless the reference is the last one.

        For the last reference return True; the pool then drops this reference. The allocator caches
        a free block that has a key; `no_cache` removes the key.
        """
        if self._blocks.references(block_id) > 1:
            self._blocks.free([block_id])
            return False
        if no_cache:
            self._blocks.forget([block_id])
        self.block_to_hash.pop(block_id, None)
        return True

    def register_new_hash(self, block_id: int, block_hash: int) -> int | None:
        """Give a block the key of its hash, and return None.

        If another block has that key, return this other block instead, with a reference that the
        next `acquire` uses.
        """
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
        """Return an empty list: unused prefixes count as free, and are dropped on demand."""
        return []

    def reset(self) -> None:
        """Forget all prefixes."""
        super().reset()
        self._claimed = None
