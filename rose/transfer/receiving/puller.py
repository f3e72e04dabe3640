"""The puller: fetches the chunks of a version, and accepts only published chunks."""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, Final, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from rose.errors import CorruptData, InvalidArgument
from rose.thread import ThreadPool
from rose.transfer.codec.delta import Delta
from rose.transfer.codec.operations import delta_check, digest
from rose.transfer.digests import Digest
from rose.transfer.manifest import TILE_MAC_BYTES, Chunk, Manifest, StagedVersion, Subscription
from rose.transfer.signing import UNSIGNED, Signing
from rose.transfer.source import Frame, Source
from rose.transfer.tiles import Tile, Tiles

RETRIES: Final = 3
# Pause before the first retry, in seconds; it doubles with each further retry.
BACKOFF_S: Final = 0.05
THREADS_MAX: Final = 64
# Frames per thread that wait for validation: enough to keep the thread busy.
_AHEAD: Final = 2

Elements: TypeAlias = npt.NDArray[Any]
# Writes a whole tile to its place, and returns the digest of the tile as it was read back.
Land: TypeAlias = Callable[[int, Elements], Digest]
_Reading: TypeAlias = Callable[[], "Delta | Elements | None"]


class Puller:
    """Pulls one version at a time. One thread uses it.

    Pulled chunks are kept until `forget`, even after a broken pull, so that they are not sent again
    if a later stage fails. A pull of another version drops them, so nothing of a dead incarnation
    remains.

    Args:
        source: source of the chunks.
        stop: event that makes a running pull end soon.
        retries: further attempts for a damaged chunk.
        threads: threads that validate chunks.
        landing_threads: the same while whole tiles land.
        signing: key with which whole tiles must be signed.
    """

    def __init__(
        self,
        source: Source,
        stop: threading.Event,
        *,
        retries: int = RETRIES,
        threads: int = 1,
        landing_threads: int = 1,
        signing: Signing = UNSIGNED,
    ) -> None:
        if not 0 < threads <= THREADS_MAX:
            raise InvalidArgument(f"threads {threads}: choose 1 to {THREADS_MAX}")
        if retries < 0:
            raise InvalidArgument(f"retries {retries} must be 0 or more")
        self._source = source
        self._stop = stop
        self._retries = retries
        self._threads, self._landing_threads = threads, landing_threads
        self._signing = signing
        self._manifest: Manifest | None = None
        # Deltas, and whole tiles: their elements, or None if they are in place already.
        self._pulled: dict[int, Delta | Elements | None] = {}
        self.received_bytes = 0
        self.retried = 0

    def pull(
        self, manifest: Manifest, subscription: Subscription, land: Land | None = None
    ) -> StagedVersion | None:
        """Fetch and return a version; None if the source no longer keeps it, or `stop` was set.

        Args:
            manifest: manifest of the version.
            subscription: tiles to fetch.
            land: gets each whole tile when it arrives, from one of the threads that validate
                chunks; then the result has no elements. None to keep them for the commit.

        Raises:
            CorruptData: a chunk was missing or damaged in every attempt.
            Unavailable: the source failed.
            DeadlineExceeded: the source sent nothing for too long.
        """
        if manifest != self._manifest:
            self._manifest, self._pulled = manifest, {}
        wanted = subscription.chunks_of(manifest)
        fault: tuple[int, str] | None = None
        for attempt in range(self._retries + 1):
            missing = [chunk for chunk in wanted if chunk.tile not in self._pulled]
            if not missing:
                break
            if attempt > 0:
                self.retried += len(missing)
                self._stop.wait(BACKOFF_S * 2.0 ** (attempt - 1))
            faults = self._pull_missing(manifest, missing, subscription.tiles, land)
            if faults is None:
                return None
            fault = next(iter(faults.items()), None)
        if fault is not None:
            raise CorruptData(
                f"tile {fault[0]} of {manifest.version} did not arrive undamaged in "
                f"{self._retries + 1} attempts: {fault[1]}"
            )
        pulled = [(chunk.tile, self._pulled[chunk.tile]) for chunk in wanted]
        if manifest.is_snapshot:
            return StagedVersion(
                manifest, whole={tile: one for tile, one in pulled if one is not None}
            )
        return StagedVersion(manifest, cast("tuple[tuple[int, Delta], ...]", tuple(pulled)))

    def forget(self) -> None:
        """Drop the pulled chunks, once the version is stored elsewhere."""
        self._manifest, self._pulled = None, {}

    def _pull_missing(
        self, manifest: Manifest, missing: Sequence[Chunk], tiles: Tiles, land: Land | None
    ) -> dict[int, str] | None:
        """Return faults by tile; None if the pull must end."""
        if self._stop.is_set():
            return None
        by_tile = {chunk.tile: chunk for chunk in missing}
        faults: dict[int, str] = {}
        reading: deque[tuple[int, _Reading]] = deque()
        is_all = True
        with (
            self._readers(land) as read,
            closing(self._source.chunks(manifest.key, missing)) as frames,
        ):
            try:
                for tile, frame in frames:
                    if frame is None or self._stop.is_set():
                        is_all = False
                        break
                    self.received_bytes += len(frame)
                    chunk = by_tile.pop(tile, None)
                    if chunk is None:
                        continue  # not requested, or here already
                    reading.append((tile, read(frame, chunk, tiles[tile])))
                    if len(reading) > _AHEAD * self._threads:
                        self._settle(*reading.popleft(), faults)
            finally:  # chunks from before a failure of the source are usable
                for one in reading:
                    self._settle(*one, faults)
        faults.update(dict.fromkeys(by_tile, "it did not arrive"))
        return faults if is_all else None

    def _settle(self, tile: int, reading: "_Reading", faults: dict[int, str]) -> None:
        try:
            self._pulled[tile] = reading()
        except CorruptData as error:
            faults[tile] = str(error)

    @contextmanager
    def _readers(self, land: Land | None) -> Iterator[Callable[[Frame, Chunk, Tile], "_Reading"]]:
        """Yield a function that starts to validate a frame and returns a getter of the result."""

        def read(frame: Frame, chunk: Chunk, tile: Tile) -> "Delta | Elements | None":
            if not chunk.is_whole:
                return sound_delta(frame, chunk, tile)
            elements = self._sound_whole(frame, chunk, tile, keeps=land is None)
            if (digest(elements) if land is None else land(tile.index, elements)) != chunk.digest:
                raise CorruptData(f"tile {tile.index} does not have the digest of its version")
            return elements if land is None else None

        threads = self._threads if land is None else self._landing_threads
        if threads == 1:
            yield lambda *frame: partial(read, *frame)
            return
        with ThreadPool(threads, "rose-staging") as readers:
            yield lambda *frame: readers.submit(read, *frame).result

    def _sound_whole(self, frame: Frame, chunk: Chunk, tile: Tile, *, keeps: bool) -> Elements:
        """Return the elements of a whole tile, if they have the right size and MAC."""
        is_fitting = len(frame) == chunk.nbytes == tile.nbytes + TILE_MAC_BYTES
        if not is_fitting or not self._signing.is_tile(frame):
            raise CorruptData(
                f"tile {tile.index} is not the publisher's: its size or its MAC differ"
            )
        elements = np.frombuffer(frame, f"u{tile.width // 8}", tile.count)
        # What is kept must not be memory that the publisher changes.
        return elements.copy() if keeps and isinstance(frame, memoryview) else elements


def sound_delta(frame: Frame, chunk: Chunk, tile: Tile) -> Delta:
    """Read a frame; accept it only if it is the published chunk and well formed.

    The content of a STRAT delta is not checked here but by `strat_unpack`, which has the base.

    Raises:
        CorruptData: the frame is not accepted.
    """
    if not chunk.is_of(frame):
        raise CorruptData(
            f"the chunk of tile {chunk.tile} is not the published one: size or SHA-256 differ"
        )
    try:
        delta = Delta.from_bytes(frame)
    except InvalidArgument as error:
        raise CorruptData(str(error)) from error
    is_fitting = delta.count == tile.count and delta.width == tile.width
    if not is_fitting or delta.changed != chunk.changed or delta.digest != chunk.digest:
        raise CorruptData(
            f"the delta in the chunk of tile {chunk.tile} does not match its tile or its manifest"
        )
    if delta.rule is not None:
        return delta
    delta_check(delta)
    delta.mark_checked()
    return delta
