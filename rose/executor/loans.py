"""What a borrower's lane asks of whoever lends, in this process or in another one."""

from collections.abc import Sequence
from typing import Protocol

from rose.events import Refusal
from rose.executor.lender import Lease


class Loans(Protocol):
    """The borrower's side of the loans. Any thread."""

    @property
    def is_closed(self) -> bool:
        """Whether lending is over."""
        ...

    def grow(self, blocks: int) -> Lease | Refusal:
        """Ask for slabs that hold up to `blocks` more blocks."""
        ...

    def give_back_idle(self) -> int:
        """Let go of slabs without a block in use or a pin; returns how many went."""
        ...

    def renew(self) -> None:
        """Say that the borrower lives; cheap when called often."""
        ...

    def step_began(self) -> None:
        """Note that work on blocks may begin."""
        ...

    def step_ended(self) -> None:
        """Note what a step gave back."""
        ...

    def is_late(self) -> bool:
        """Whether slabs whose deadline has passed are still in use."""
        ...

    def retry_after_ms(self) -> float:
        """How long growth is held off, in milliseconds."""
        ...

    def lent_slabs(self) -> list[int]:
        """The slabs on loan that are not being taken back."""
        ...

    def leaving_slabs(self) -> frozenset[int]:
        """The slabs to be emptied."""
        ...

    @property
    def takes_ranks(self) -> bool:
        """Whether slabs are chosen without asking the engine, by the ranks that it gave."""
        ...

    def rank(self, slabs: Sequence[int]) -> None:
        """Say which slabs the engine would rather part with, the first of them first."""
        ...

    def slabs_max(self) -> int:
        """The most slabs the borrower could ever hold."""
        ...
