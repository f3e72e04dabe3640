"""What the functions of this room return: tensors on the device, not waited for."""

from dataclasses import dataclass
from typing import Any, Protocol


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


@dataclass(frozen=True, slots=True)
class UnpackedChanges:
    """What a delta changes, on the device.

    Args:
        positions: (capacity,) int64, ascending, and -1 from `count` on.
        values: (capacity,) int8, int16 or int32, the bits that the positions get.
        count: () int64, changes of the table; those beyond the capacity are not listed.
        errors: () integer, the lowest bad block, or -1. The places of a bad block's changes hold
            -1.
    """

    positions: Any
    values: Any
    count: Any
    errors: Any


class BlockCodec(Protocol):
    """The delta codec on tensors of one GPU; see the functions of the same names in this room.

    The type of a tensor's elements says how wide they are. New weights, shadow, weights and base
    may be views of larger tensors, see `rose.kernels.box`.
    """

    def delta_pack(
        self,
        new: Any,
        shadow: Any,
        *,
        block_elements: int,
        threshold: Any,
        ages: Any = None,
        age_limit: int = 255,
        arena_words: int | None = None,
    ) -> PackedBlocks:
        """Pack what changed and move the shadow."""
        ...

    def delta_apply(
        self,
        weights: Any,
        entries: Any,
        offsets: Any,
        payload: Any,
        *,
        block_elements: int,
        undo: bool,
        blocks: range | None = None,
    ) -> Any:
        """Change the weights; returns the lowest bad block, or -1."""
        ...

    def topk_threshold(
        self, new: Any, shadow: Any, *, budget: int, ages: Any = None, age_limit: int = 255
    ) -> Any:
        """Return the threshold for a budget."""
        ...

    def topk_unpack(
        self,
        base: Any,
        entries: Any,
        offsets: Any,
        payload: Any,
        *,
        block_elements: int,
        capacity: int,
    ) -> UnpackedChanges:
        """List what a delta changes."""
        ...

    def digest(self, bits: Any, *, first_index: int, seed: int) -> Any:
        """Return the two sums."""
        ...
