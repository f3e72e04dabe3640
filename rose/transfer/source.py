"""Where receivers and relays get versions from: a log or a relay here, or a server elsewhere."""

from collections.abc import Generator, Sequence
from typing import Protocol, TypeAlias

from rose.transfer.digests import Digest
from rose.transfer.manifest import Chunk, Manifest, UpdateKey

Frame: TypeAlias = bytes | bytearray | memoryview
Frames: TypeAlias = Generator[tuple[int, Frame | None], None, None]

NOTHING_KNOWN = -1


class Source(Protocol):
    """Versions as a receiver or a relay sees them. One thread calls it."""

    def wait_manifests(self, after_n: int, timeout_s: float) -> list[Manifest]:
        """Return the versions that are kept above a number, the oldest first, once there are any.

        Args:
            after_n: -1, or below, for all that are kept.
            timeout_s: the longest wait; what comes back is empty then.

        Raises:
            Unavailable: the publisher cannot be reached.
            CorruptData: what came is no list of manifests.
        """
        ...

    def seed(self, n: int | None, tiles: Sequence[int]) -> Manifest | None:
        """Return a seed with these tiles, perhaps none, and the digests of all.

        Args:
            n: the version; None for the newest.
            tiles: ascending, each once.

        Returns:
            None where that version cannot be made any more.

        Raises:
            Unavailable: the publisher cannot be reached.
            OutOfMemory: it has no room for a seed.
            CorruptData: what came is no manifest.
        """
        ...

    def chunks(self, key: UpdateKey, wanted: Sequence[Chunk]) -> Frames:
        """Yield (tile, frame) of chunks in any order, unchecked; None for what is kept no more.

        Raises:
            Unavailable: the publisher cannot be reached, or broke off; what came is good.
            DeadlineExceeded: nothing came for too long.
            CorruptData: what came is no answer.
        """
        ...

    def report(self, receiver: str, n: int, is_match: bool, digest: Digest) -> None:  # noqa: FBT001
        """Say what came of a version: whether the digest is the trainer's, and what it is.

        Raises:
            InvalidArgument: the name of the receiver is too long.
            Unavailable: the publisher cannot be reached.
        """
        ...

    def break_off(self) -> None:
        """Let whoever pulls chunks now get `Unavailable`; later calls go on.

        Any thread may call; it does not wait.
        """
        ...


class SourceAround:
    """A source that says what another one says; what is to be otherwise is overridden.

    Args:
        source: the other.
    """

    def __init__(self, source: Source) -> None:
        self._source = source

    def wait_manifests(self, after_n: int, timeout_s: float) -> list[Manifest]:
        """Wait for versions."""
        return self._source.wait_manifests(after_n, timeout_s)

    def seed(self, n: int | None, tiles: Sequence[int]) -> Manifest | None:
        """Ask for a seed."""
        return self._source.seed(n, tiles)

    def chunks(self, key: UpdateKey, wanted: Sequence[Chunk]) -> Frames:
        """Pull chunks."""
        return self._source.chunks(key, wanted)

    def report(self, receiver: str, n: int, is_match: bool, digest: Digest) -> None:  # noqa: FBT001
        """Pass the report on."""
        self._source.report(receiver, n, is_match, digest)

    def break_off(self) -> None:
        """End what is pulled."""
        self._source.break_off()
