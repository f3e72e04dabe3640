"""Blocks with reference counts and a prefix cache: what vLLM's pool asks of an allocator."""

from collections import Counter
from collections.abc import Sequence
from typing import Final, Protocol, cast

from rose._core import BlockAllocator
from rose.errors import InvalidArgument

KEY_BYTES: Final = 16


class SharedBlocks(Protocol):
    """The blocks of one partition, shared and cached.

    A block has references, or is cached, or is free; `free_blocks` counts the last two.
    """

    @property
    def free_blocks(self) -> int:
        """Blocks that `alloc` could give, those cached without a reference included."""
        ...

    @property
    def used_blocks(self) -> int:
        """Blocks with a reference, and those set aside."""
        ...

    def references(self, block: int) -> int:
        """Return how many hold the block."""
        ...

    def alloc(self, n: int) -> list[int] | None:
        """Take `n` blocks with one reference each; None, and nothing taken, if fewer are free."""
        ...

    def share(self, ids: Sequence[int]) -> None:
        """Add a reference to each block; cached ones come alive."""
        ...

    def free(self, ids: Sequence[int]) -> None:
        """Take one reference of each block away, as often as it is named."""
        ...

    def publish(self, ids: Sequence[int], keys: bytes) -> None:
        """Let each block be found by its key of 16 bytes; the first block of a key keeps it."""
        ...

    def lookup(self, keys: bytes) -> list[int]:
        """Return the blocks of the longest prefix of `keys` that is cached, taking no reference."""
        ...

    def forget(self, ids: Sequence[int]) -> None:
        """Take the keys of blocks away; those without a reference are free."""
        ...

    def forget_all(self) -> None:
        """Take all keys away."""
        ...


def shared_blocks(allocator: BlockAllocator) -> SharedBlocks:
    """Return what shares and caches the blocks of `allocator`: itself, if it can."""
    if hasattr(allocator, "lookup"):
        return cast("SharedBlocks", allocator)
    return PrefixBlocks(allocator)


class PrefixBlocks:
    """References and keys for an allocator that only gives and takes. For one thread at a time.

    The life of a block: `alloc` → `share`* → `free`, … → free; one that was published stays cached
    when its last reference goes, counts as free, and is taken anew when nothing else is left,
    least recently freed first.
    """

    def __init__(self, allocator: BlockAllocator) -> None:
        """Take blocks from `allocator`, which nobody else does."""
        self._allocator = allocator
        self._references: Counter[int] = Counter()
        self._key_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}
        self._cached: dict[int, None] = {}  # Without references, in the order of eviction.

    @property
    def free_blocks(self) -> int:
        """Blocks that `alloc` could give, those cached without a reference included."""
        return self._allocator.free_blocks + len(self._cached)

    @property
    def used_blocks(self) -> int:
        """Blocks with a reference, and those set aside."""
        return self._allocator.used_blocks - len(self._cached)

    def references(self, block: int) -> int:
        """Return how many hold the block."""
        return self._references[block]

    def alloc(self, n: int) -> list[int] | None:
        """Take `n` blocks with one reference each; None, and nothing taken, if fewer are free."""
        if n > self.free_blocks:
            return None
        missing = n - self._allocator.free_blocks
        if missing > 0:
            self.forget(list(self._cached)[:missing])
        ids = self._allocator.alloc(n)
        self._references.update(ids or ())
        return ids

    def share(self, ids: Sequence[int]) -> None:
        """Add a reference to each block; cached ones come alive.

        Raises:
            InvalidArgument: a block has no reference and is not cached; nothing has changed.
        """
        for block in ids:
            if self._references[block] == 0 and block not in self._cached:
                raise InvalidArgument(f"block {block} is free: nobody can share it")
        for block in ids:
            self._cached.pop(block, None)
        self._references.update(ids)

    def free(self, ids: Sequence[int]) -> None:
        """Take one reference of each block away, as often as it is named.

        Raises:
            InvalidArgument: a block has fewer references; nothing has changed.
        """
        for block, times in Counter(ids).items():
            if self._references[block] < times:
                raise InvalidArgument(f"block {block} is free already")
        self._references.subtract(ids)
        unused = [block for block in dict.fromkeys(ids) if self._references[block] == 0]
        for block in unused:
            del self._references[block]
        self._cached.update(dict.fromkeys(block for block in unused if block in self._key_of))
        self._allocator.free([block for block in unused if block not in self._key_of])

    def publish(self, ids: Sequence[int], keys: bytes) -> None:
        """Let each block be found by its key; the first block of a key keeps it.

        Args:
            ids: with references, without keys.
            keys: 16 bytes for each block.
        """
        for index, block in enumerate(ids):
            key = keys[index * KEY_BYTES : (index + 1) * KEY_BYTES]
            if key not in self._block_of:
                self._block_of[key] = block
                self._key_of[block] = key

    def lookup(self, keys: bytes) -> list[int]:
        """Return the blocks of the longest prefix of `keys` that is cached."""
        found: list[int] = []
        for start in range(0, len(keys), KEY_BYTES):
            block = self._block_of.get(keys[start : start + KEY_BYTES])
            if block is None:
                break
            found.append(block)
        return found

    def forget(self, ids: Sequence[int]) -> None:
        """Take the keys of blocks away; those without a reference are free."""
        for block in ids:
            key = self._key_of.pop(block, None)
            if key is not None:
                del self._block_of[key]
        unused = [block for block in ids if block in self._cached]
        for block in unused:
            del self._cached[block]
        self._allocator.free(unused)

    def forget_all(self) -> None:
        """Take all keys away."""
        self.forget(list(self._key_of))

    def forget_in(self, slabs: frozenset[int]) -> None:
        """Take the keys of blocks in `slabs` away, so that no cache holds a slab up."""
        slab_of = self._allocator.slab_of
        self.forget([block for block in self._cached if slab_of(block) in slabs])
