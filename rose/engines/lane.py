"""What an engine's block pool needs of either lane."""

from typing import Protocol

from rose.memory import KVSpace


class KVLane(Protocol):
    """A tenant's memory, and a way to ask for more of it."""

    @property
    def kv(self) -> KVSpace:
        """The tenant's view of the pool."""
        ...

    def ensure(self, blocks: int) -> bool:
        """Try to have `blocks` free blocks now."""
        ...

    def alloc(self, blocks: int) -> list[int] | None:
        """Take `blocks` free blocks, or None when fewer are free."""
        ...
