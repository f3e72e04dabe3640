"""Where a receiver gets versions from."""

from collections.abc import Generator, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

from rose.transfer.digests import Digest
from rose.transfer.manifest import Chunk, Manifest, UpdateKey
from rose.transfer.relaying.upstream import Upstream

Frame: TypeAlias = bytes | bytearray | memoryview

NOTHING_KNOWN = -1


class Source(Protocol):
    """The log of a publisher as a receiver sees it. One thread calls it."""

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

    def chunks(
        self, key: UpdateKey, wanted: Sequence[Chunk]
    ) -> Generator[tuple[int, Frame | None], None, None]:
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
            Unavailable: the publisher cannot be reached.
        """
        ...


@runtime_checkable
class BreaksOff(Protocol):
    """A source whose `chunks` another thread can end; a receiver that is closed does."""

    def break_off(self) -> None:
        """Let whoever pulls chunks now get `Unavailable`; later calls go on. Does not wait."""
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

    def chunks(
        self, key: UpdateKey, wanted: Sequence[Chunk]
    ) -> Generator[tuple[int, Frame | None], None, None]:
        """Pull chunks."""
        return self._source.chunks(key, wanted)

    def report(self, receiver: str, n: int, is_match: bool, digest: Digest) -> None:  # noqa: FBT001
        """Pass the report on."""
        self._source.report(receiver, n, is_match, digest)

    def break_off(self) -> None:
        """End what is pulled, if the other source can."""
        if isinstance(self._source, BreaksOff):
            self._source.break_off()


class InProcessSource:
    """The log itself, or a relay, for receivers in the same process."""

    def __init__(self, log: Upstream) -> None:
        self._log = log

    def wait_manifests(self, after_n: int, timeout_s: float) -> list[Manifest]:
        """Wait on the log."""
        return self._log.wait_after(after_n, timeout_s)

    def seed(self, n: int | None, tiles: Sequence[int]) -> Manifest | None:
        """Let the log make it."""
        return self._log.seed(n, tiles)

    def chunks(
        self, key: UpdateKey, wanted: Sequence[Chunk]
    ) -> Generator[tuple[int, Frame | None], None, None]:
        """Yield the frames as the log has them; nothing is copied."""
        for one in wanted:
            yield one.tile, self._log.chunk(key, one.tile)

    def report(self, receiver: str, n: int, is_match: bool, digest: Digest) -> None:  # noqa: FBT001
        """Acknowledge in the log."""
        self._log.acknowledge(receiver, n, is_match=is_match, digest=digest)
