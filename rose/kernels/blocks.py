"""Packed deltas on a device, from either codec of this package."""

from dataclasses import dataclass
from typing import Any, Final

# Largest age of an element: the count of packs that left it unsent stops here.
AGE_MAX: Final = 255


@dataclass(frozen=True, slots=True)
class PackedBlocks:
    """A delta on the device, or several in a row.

    Args:
        row: (2 * blocks + n,) int32, the u64 of the table and then the arena, which begins with the
            payload. Kind 15 in the table is a deferred block, which did not fit the arena, and
            whose shadow did not move.
        ends: (blocks + 1,) int64, start of each block's payload in the arena, in words, and the end
            of the last one. If blocks were deferred, it is more than the arena has.
        digest: (2,) int64, digest of the shadow after packing; (2 * n,) for n shadows.
    """

    row: Any
    ends: Any
    digest: Any

    @property
    def blocks(self) -> int:
        """Return the number of delta blocks."""
        return len(self.ends) - 1

    @property
    def entries(self) -> Any:
        """Return the table, (blocks,) int64."""
        return self.row[: 2 * self.blocks].view(self.ends.dtype)

    @property
    def offsets(self) -> Any:
        """Return where the payload of each block begins, (blocks,) int64."""
        return self.ends[:-1]

    @property
    def arena(self) -> Any:
        """Return the arena, (n,) int32 with the bits of u32 words."""
        return self.row[2 * self.blocks :]

    @property
    def words(self) -> Any:
        """Return the number of words that all blocks together need, () int64."""
        return self.ends[-1]
