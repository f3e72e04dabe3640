"""A delta on a device, as both codecs of this room pack it."""

from dataclasses import dataclass
from typing import Any, Final

# The largest age of an element: more packs that left it unsent are not counted.
AGE_MAX: Final = 255


@dataclass(frozen=True, slots=True)
class PackedBlocks:
    """A delta on the device, its blocks in any order.

    Args:
        entries: (blocks,) int64, the u64 of the table; kind 15 is a block the arena had no room
            for, whose shadow did not move.
        offsets: (blocks,) int64, where a block's payload lies in the arena, in words.
        arena: int32 that holds u32 words.
        words: () int64, words that the blocks asked for; more than the arena has when blocks were
            deferred.
        digest: (2,) int64, the digest of the shadow after packing.
    """

    entries: Any
    offsets: Any
    arena: Any
    words: Any
    digest: Any
