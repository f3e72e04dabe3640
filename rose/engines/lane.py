"""The part of a lane that an engine's block pool needs, for serving and for the borrower."""

from typing import Protocol

from rose.memory import KVSpace


class KVLane(Protocol):
    """A tenant's memory, with a way to request more."""

    @property
    def kv(self) -> KVSpace:
        """The tenant's view of the pool."""
        ...

    def ensure(self, blocks: int) -> bool:
        """Try to make at least `blocks` blocks free; return True if that many are free."""
        ...

    def alloc(self, blocks: int) -> list[int] | None:
        """Take `blocks` free blocks; None if fewer are free."""
        ...
