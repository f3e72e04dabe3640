"""Blocks that were set aside for one sequence."""

from dataclasses import dataclass

from rose._core import BlockAllocator
from rose.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class Ticket:
    """A reservation: nobody else gets these blocks until it is used up or cancelled."""

    allocator: BlockAllocator
    reservation: int

    def commit(self, blocks: int) -> list[int]:
        """Turn `blocks` of the reserved blocks into block ids.

        Raises:
            InvalidArgument: fewer are left in the ticket.
        """
        ids = self.allocator.commit(self.reservation, blocks)
        if ids is None:
            raise InvalidArgument(f"the ticket holds fewer than {blocks} blocks")
        return ids

    def cancel(self) -> None:
        """Give what is left back."""
        self.allocator.cancel(self.reservation)
