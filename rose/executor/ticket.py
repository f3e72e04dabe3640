"""Blocks that were set aside for one sequence."""

from dataclasses import dataclass

from rose._core import BlockAllocator
from rose.events import Reason, Refusal


@dataclass(frozen=True, slots=True)
class Ticket:
    """A reservation: nobody else gets these blocks until it is used up or cancelled."""

    allocator: BlockAllocator
    reservation: int

    def commit(self, blocks: int) -> list[int] | Refusal:
        """Turn `blocks` of the reserved blocks into block ids.

        A refusal when fewer are left: they were committed, or their slab was taken back. A ticket
        holds no data yet, so it never holds up a revocation.
        """
        ids = self.allocator.commit(self.reservation, blocks)
        return Refusal(Reason.POOL_EMPTY) if ids is None else ids

    def cancel(self) -> None:
        """Give what is left back."""
        self.allocator.cancel(self.reservation)
