"""Sources of versions for receivers and relays: a local log or relay, or a remote server."""

from collections.abc import Generator, Sequence
from typing import Protocol, TypeAlias

from rose.transfer.digests import Digest
from rose.transfer.manifest import Chunk, Manifest, UpdateKey

Frame: TypeAlias = bytes | bytearray | memoryview
Frames: TypeAlias = Generator[tuple[int, Frame | None], None, None]

NOTHING_KNOWN = -1


class Source(Protocol):
    """Versions for a receiver or a relay. One thread calls it."""

    def wait_manifests(self, after_n: int, timeout_s: float) -> list[Manifest]:
        """Wait for a version above `after_n`; return the kept manifests of such versions, in order.

        Args:
            after_n: number of the newest known version; -1 for none.
            timeout_s: longest wait, in seconds; after it the result is empty.

        Raises:
            Unavailable: the publisher cannot be reached.
            CorruptData: the answer is not a list of manifests.
        """
        ...

    def snapshot(self, n: int | None, tiles: Sequence[int]) -> Manifest | None:
        """Return a snapshot: a chunk for each of the given tiles, and the digests of all tiles.

        Args:
            n: number of the version; None for the newest.
            tiles: indices of the tiles, ascending, each once; may be empty.

        Returns:
            The snapshot's manifest; None if that version can no longer be restored.

        Raises:
            Unavailable: the publisher cannot be reached.
            CorruptData: the answer is not a manifest.
        """
        ...

    def chunks(self, key: UpdateKey, wanted: Sequence[Chunk]) -> Frames:
        """Yield (tile, frame) of each wanted chunk, in any order.

        A frame is None if the source no longer keeps it. The caller must check each frame against
        its chunk.

        Raises:
            Unavailable: the publisher cannot be reached, or the connection broke; earlier frames
                stay usable.
            DeadlineExceeded: nothing arrived for too long.
            CorruptData: the answer is invalid.
        """
        ...

    def report(self, receiver: str, n: int, is_match: bool, digest: Digest) -> None:  # noqa: FBT001
        """Report a receiver's digest after version `n`, and whether it is the trainer's digest.

        Raises:
            InvalidArgument: the name of the receiver is too long.
            Unavailable: the publisher cannot be reached.
        """
        ...

    def break_off(self) -> None:
        """Make running calls, and a running pull of chunks, raise `Unavailable`; later ones work.

        Any thread may call this method, which does not wait.
        """
        ...


class SourceAround:
    """A source that forwards to another source; subclasses override some calls."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def wait_manifests(self, after_n: int, timeout_s: float) -> list[Manifest]:
        """Wait for versions."""
        return self._source.wait_manifests(after_n, timeout_s)

    def snapshot(self, n: int | None, tiles: Sequence[int]) -> Manifest | None:
        """Ask for a snapshot."""
        return self._source.snapshot(n, tiles)

    def chunks(self, key: UpdateKey, wanted: Sequence[Chunk]) -> Frames:
        """Pull chunks."""
        return self._source.chunks(key, wanted)

    def report(self, receiver: str, n: int, is_match: bool, digest: Digest) -> None:  # noqa: FBT001
        """Forward the report."""
        self._source.report(receiver, n, is_match, digest)

    def break_off(self) -> None:
        """End a running pull."""
        self._source.break_off()
