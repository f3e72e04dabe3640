"""The puller: gets the chunks of a version, and lets none through that was not published."""

import hashlib
import threading
from typing import Final

from rose.errors import CorruptData, InvalidArgument
from rose.transfer.codec import delta_check
from rose.transfer.delta import Delta
from rose.transfer.manifest import Chunk, Manifest, StagedVersion
from rose.transfer.source import Source

RETRIES: Final = 3
BACKOFF_S: Final = 0.05


class Puller:
    """Pulls one version at a time. One thread uses it.

    What was pulled of a version stays when the source breaks off, and is dropped with the first
    chunk of another version: a dead incarnation leaves nothing behind.

    Args:
        source: where chunks come from.
        stop: set by whoever wants the pulling to end soon.
        retries: further attempts for a chunk that is damaged.
        backoff_s: before the first of them; twice as long before each further one.
    """

    def __init__(
        self,
        source: Source,
        stop: threading.Event,
        *,
        retries: int = RETRIES,
        backoff_s: float = BACKOFF_S,
    ) -> None:
        if retries < 0 or backoff_s < 0:
            raise InvalidArgument(f"retries {retries} and backoff_s {backoff_s} must be 0 or more")
        self._source = source
        self._stop = stop
        self._retries = retries
        self._backoff_s = backoff_s
        self._manifest: Manifest | None = None
        self._pulled: dict[int, Delta] = {}
        self.received_bytes = 0
        self.retried = 0

    def pull(self, manifest: Manifest) -> StagedVersion | None:
        """Return the version, or None when it is kept no more, or `stop` was set.

        Raises:
            CorruptData: a chunk is damaged, each time it is asked for.
            Unavailable: the source broke off.
        """
        if manifest != self._manifest:
            self._manifest, self._pulled = manifest, {}
        for chunk in manifest.chunks:
            if chunk.tile in self._pulled:
                continue
            delta = self._pull_chunk(manifest, chunk)
            if delta is None:
                return None
            self._pulled[chunk.tile] = delta
        deltas = tuple((chunk.tile, self._pulled[chunk.tile]) for chunk in manifest.chunks)
        self._manifest, self._pulled = None, {}
        return StagedVersion(manifest, deltas)

    def _pull_chunk(self, manifest: Manifest, chunk: Chunk) -> Delta | None:
        found = ""
        for attempt in range(self._retries + 1):
            if attempt > 0:
                self.retried += 1
                self._stop.wait(self._backoff_s * 2.0 ** (attempt - 1))
            if self._stop.is_set():
                return None
            try:
                frame = self._source.chunk(manifest.version.n, chunk.tile, is_seed=manifest.is_seed)
                if frame is None:
                    return None
                self.received_bytes += len(frame)
                return sound_delta(frame, chunk, manifest)
            except CorruptData as error:
                found = str(error)
        raise CorruptData(
            f"tile {chunk.tile} of {manifest.version} came damaged {self._retries + 1} times: "
            f"{found}"
        )


def sound_delta(frame: bytes, chunk: Chunk, manifest: Manifest) -> Delta:
    """Read a frame that is what the manifest says, and well formed throughout.

    Of a delta for a link, only its frame: `strat_unpack`, which has the base, looks at the rest.

    Raises:
        CorruptData: it is not.
    """
    if len(frame) != chunk.nbytes or hashlib.sha256(frame).digest() != chunk.sha256:
        raise CorruptData(f"the chunk of tile {chunk.tile} is not the one that was published")
    try:
        delta = Delta.from_bytes(frame)
    except InvalidArgument as error:
        raise CorruptData(str(error)) from error
    if delta.count != manifest.tiles[chunk.tile].count or delta.changed != chunk.changed:
        raise CorruptData(f"the chunk of tile {chunk.tile} is for another tile")
    if delta.rule is None:
        delta_check(delta)
    return delta
