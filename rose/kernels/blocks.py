"""Packed deltas on a device, from either codec of this package."""

from dataclasses import dataclass
from typing import Any, Final

# Largest age. The age of an element counts the consecutive packs that did not send it.
AGE_MAX: Final = 255


@dataclass(frozen=True, slots=True)
class PackedBlocks:
    """A delta on the device, or several one after the other, with payloads in any order.

    Args:
        entries: (blocks,) int64, the u64 of the table; kind 15 is a deferred block: it did not fit
            the arena, and its shadow is unchanged.
        offsets: (blocks,) int64, start of each block's payload in the arena, in words.
        arena: (n,) int32 with the bits of u32 words.
        words: () int64, words needed by all blocks; more than the arena has if blocks were
            deferred.
        digest: (2,) int64, digest of the shadow after packing; (2 * n,) for n shadows.
    """

    entries: Any
    offsets: Any
    arena: Any
    words: Any
    digest: Any
