"""A source for who only pulls, beside somebody who follows the versions."""

from collections.abc import Generator, Sequence
from typing import Final

from rose.transfer.digests import Digest
from rose.transfer.manifest import Chunk, Manifest, UpdateKey
from rose.transfer.receiving.source import Frame, Source

# No version comes after it, so nobody waits and nothing is told but where the chunks are.
_LAST_N: Final = (1 << 62) - 1


class ReaderSource:
    """Asks where the chunks are before the first of them, and again after a failure.

    A server of chunks says where it is when it tells of versions, for which a reader never asks;
    one that was started again is elsewhere. One thread calls it.

    Args:
        source: the other.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._is_found = False

    def wait_manifests(self, after_n: int, timeout_s: float) -> list[Manifest]:
        """Wait for versions."""
        return self._source.wait_manifests(after_n, timeout_s)

    def seed(self, n: int | None, tiles: Sequence[int]) -> Manifest | None:
        """Ask for a seed."""
        return self._source.seed(n, tiles)

    def chunks(
        self, key: UpdateKey, wanted: Sequence[Chunk]
    ) -> Generator[tuple[int, Frame | None], None, None]:
        """Pull chunks from where they are now."""
        if not self._is_found:
            self._source.wait_manifests(_LAST_N, 0.0)
        self._is_found = False  # until all went well
        yield from self._source.chunks(key, wanted)
        self._is_found = True

    def report(self, receiver: str, n: int, is_match: bool, digest: Digest) -> None:  # noqa: FBT001
        """Pass the report on."""
        self._source.report(receiver, n, is_match, digest)
