"""Packed deltas on a device, from either codec of this package."""

from dataclasses import dataclass
from typing import Any, Final

# Kind of a block that did not fit the arena, in the lowest four bits of its entry.
DEFERRED: Final = 15
# Largest age. The age of an element counts the consecutive packs that did not send it.
AGE_MAX: Final = 255


@dataclass(frozen=True, slots=True)
class PackedBlocks:
    """A delta on the device, or several one after the other.

    Args:
        row: (2 * blocks + n,) int32, the table, with one u64 for each block, and then the arena,
            which begins with the payload. `DEFERRED` marks a block that did not fit the arena, and
            whose shadow is unchanged; then all later blocks with changes are deferred, too.
        ends: (blocks + 1,) int64, start of each block's payload in the arena, in words, and the end
            of the last payload, which lies beyond the arena if blocks were deferred.
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
