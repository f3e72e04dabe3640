"""A source for who only pulls, beside somebody who follows the versions."""

from collections.abc import Generator, Sequence
from typing import Final

from rose.transfer.manifest import Chunk, UpdateKey
from rose.transfer.receiving.source import Frame, Source, SourceAround

# No version comes after it, so nobody waits and nothing is told but where the chunks are.
_LAST_N: Final = (1 << 62) - 1


class ReaderSource(SourceAround):
    """Asks where the chunks are before the first of them, and again after a failure.

    A server of chunks says where it is when it tells of versions, for which a reader never asks;
    one that was started again is elsewhere. One thread calls it.

    Args:
        source: the other.
    """

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._is_found = False

    def chunks(
        self, key: UpdateKey, wanted: Sequence[Chunk]
    ) -> Generator[tuple[int, Frame | None], None, None]:
        """Pull chunks from where they are now."""
        if not self._is_found:
            self._source.wait_manifests(_LAST_N, 0.0)
        self._is_found = False  # until all went well
        yield from self._source.chunks(key, wanted)
        self._is_found = True
