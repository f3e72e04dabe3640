"""Blocks reserved for one sequence."""

from dataclasses import dataclass

from rose._core import BlockAllocator
from rose.events import Reason, Refusal


@dataclass(frozen=True, slots=True)
class Ticket:
    """Reserved blocks: no other sequence gets them until the ticket is committed or cancelled."""

    allocator: BlockAllocator
    reservation: int

    def commit(self, blocks: int) -> list[int] | Refusal:
        """Turn `blocks` of the reserved blocks into block ids.

        This is refused if fewer reserved blocks are left, because they were committed or their slab
        was taken back. Reserved blocks hold no data, so they never delay a revocation.
        """
        ids = self.allocator.commit(self.reservation, blocks)
        return Refusal(Reason.POOL_EMPTY) if ids is None else ids

    def cancel(self) -> None:
        """Free the remaining blocks."""
        self.allocator.cancel(self.reservation)
