"""The interface of a lane to an engine's block pool, for serving and borrower."""

from typing import Protocol

from rose.memory import KVSpace


class KVLane(Protocol):
    """A tenant's memory, with a way to request more."""

    @property
    def kv(self) -> KVSpace:
        """The tenant's view of the pool."""
        ...

    def ensure(self, blocks: int) -> bool:
        """Try to have `blocks` free blocks now."""
        ...

    def alloc(self, blocks: int) -> list[int] | None:
        """Take `blocks` free blocks; None if fewer are free."""
        ...
