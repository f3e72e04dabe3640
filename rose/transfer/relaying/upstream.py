"""What receivers are served from: the log of a publisher, or a relay that follows one."""

from collections.abc import Callable, Sequence
from typing import Protocol

from rose.transfer.digests import Digest
from rose.transfer.manifest import Manifest, UpdateKey


class Served(Protocol):
    """Who has chunks. Any thread may call."""

    def chunk(self, key: UpdateKey, tile: int) -> bytes | None:
        """Return the frame of a tile, or None when it is kept no more; it counts as sent.

        Raises:
            Unavailable: it cannot be read now.
            DeadlineExceeded: it did not come in time.
        """
        ...


class Upstream(Served, Protocol):
    """Manifests, chunks and seeds for whoever asks, and answers taken. Any thread may call."""

    def wait_after(
        self, n: int, timeout_s: float, *, is_over: Callable[[], bool] = ...
    ) -> list[Manifest]:
        """Wait for a version above `n`; nothing comes back when there was none in time.

        Args:
            n: of the newest version that is known; -1 for none.
            timeout_s: how long to wait.
            is_over: asked when `wake` is called: whether to wait no longer.
        """
        ...

    def wake(self) -> None:
        """Let whoever waits look whether the wait is over."""
        ...

    def seed(self, n: int | None, tiles: Sequence[int]) -> Manifest | None:
        """Return a seed of a version, the newest where n is None, with these tiles whole.

        Raises:
            OutOfMemory: there is no room for it.
            Unavailable: nobody can make it now.
        """
        ...

    def acknowledge(self, receiver: str, n: int, *, is_match: bool, digest: Digest) -> None:
        """Take what came of a version at a receiver.

        Raises:
            InvalidArgument: the name is too long.
        """
        ...
