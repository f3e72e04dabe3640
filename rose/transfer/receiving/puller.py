"""The puller: gets the chunks of a version, and lets none through that was not published."""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from typing import Final, TypeAlias

from rose.errors import CorruptData, InvalidArgument
from rose.transfer.codec.delta import Delta
from rose.transfer.codec.operations import delta_check
from rose.transfer.manifest import Chunk, Manifest, StagedVersion
from rose.transfer.receiving.subscription import Subscription
from rose.transfer.source import Frame, Source
from rose.transfer.tiles import Tile, Tiles

RETRIES: Final = 3
BACKOFF_S: Final = 0.05
THREADS_MAX: Final = 64
# Frames that wait to be looked at, for each thread: as much memory as keeps it busy.
_AHEAD: Final = 2

_Reading: TypeAlias = Callable[[], Delta]


class Puller:
    """Pulls one version at a time. One thread uses it.

    What was pulled of a version stays when the source breaks off, and until `forget`, so that it
    does not cross again where what is made of it fails. It is dropped with the first chunk of
    another version: a dead incarnation leaves nothing behind.

    Args:
        source: where chunks come from.
        stop: set by whoever wants the pulling to end soon.
        retries: further attempts for a chunk that is damaged.
        threads: that look at what came.
        backoff_s: before the first of them; twice as long before each further one.
    """

    def __init__(
        self,
        source: Source,
        stop: threading.Event,
        *,
        retries: int = RETRIES,
        backoff_s: float = BACKOFF_S,
        threads: int = 1,
    ) -> None:
        if not 0 < threads <= THREADS_MAX:
            raise InvalidArgument(f"threads {threads}: choose 1 to {THREADS_MAX}")
        if retries < 0 or backoff_s < 0:
            raise InvalidArgument(f"retries {retries} and backoff_s {backoff_s} must be 0 or more")
        self._source = source
        self._stop = stop
        self._retries = retries
        self._backoff_s = backoff_s
        self._threads = threads
        self._manifest: Manifest | None = None
        self._pulled: dict[int, Delta] = {}
        self.received_bytes = 0
        self.retried = 0

    def pull(self, manifest: Manifest, subscription: Subscription) -> StagedVersion | None:
        """Return the version, or None when it is kept no more, or `stop` was set.

        Raises:
            CorruptData: a chunk is damaged, each time it is asked for.
            Unavailable: the source broke off.
            DeadlineExceeded: it said nothing for too long.
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
                self._stop.wait(self._backoff_s * 2.0 ** (attempt - 1))
            faults = self._pull_missing(manifest, missing, subscription.tiles)
            if faults is None:
                return None
            fault = next(iter(faults.items()), None)
        if fault is not None:
            raise CorruptData(
                f"tile {fault[0]} of {manifest.version} came damaged {self._retries + 1} times: "
                f"{fault[1]}"
            )
        return StagedVersion(
            manifest, tuple((chunk.tile, self._pulled[chunk.tile]) for chunk in wanted)
        )

    def forget(self) -> None:
        """Drop what was pulled: it lies ready elsewhere."""
        self._manifest, self._pulled = None, {}

    def _pull_missing(
        self, manifest: Manifest, missing: Sequence[Chunk], tiles: Tiles
    ) -> dict[int, str] | None:
        """Return what is wrong with tiles that came damaged, or None when there is no more."""
        if self._stop.is_set():
            return None
        by_tile = {chunk.tile: chunk for chunk in missing}
        faults: dict[int, str] = {}
        reading: deque[tuple[int, _Reading]] = deque()
        is_all = True
        with self._readers() as read, closing(self._source.chunks(manifest.key, missing)) as frames:
            try:
                for tile, frame in frames:
                    if frame is None or self._stop.is_set():
                        is_all = False
                        break
                    self.received_bytes += len(frame)
                    chunk = by_tile.pop(tile, None)
                    if chunk is None:
                        continue  # nobody asked for it, or it is here already
                    reading.append((tile, read(frame, chunk, tiles[tile])))
                    if len(reading) > _AHEAD * self._threads:
                        self._settle(*reading.popleft(), faults)
            finally:  # what came before the source broke off is good
                for one in reading:
                    self._settle(*one, faults)
        faults.update(dict.fromkeys(by_tile, "it did not come"))
        return faults if is_all else None

    def _settle(self, tile: int, reading: "_Reading", faults: dict[int, str]) -> None:
        try:
            self._pulled[tile] = reading()
        except CorruptData as error:
            faults[tile] = str(error)

    @contextmanager
    def _readers(self) -> Iterator[Callable[[Frame, Chunk, Tile], "_Reading"]]:
        """Yield what begins to read a frame and returns how to wait for it."""
        if self._threads == 1:
            yield lambda *frame: partial(sound_delta, *frame)
            return
        with ThreadPoolExecutor(self._threads, "rose-staging") as readers:
            yield lambda *frame: readers.submit(sound_delta, *frame).result


def sound_delta(frame: Frame, chunk: Chunk, tile: Tile) -> Delta:
    """Read a frame that is what the manifest says, and well formed throughout.

    Of a delta for a link, only its frame: `strat_unpack`, which has the base, looks at the rest.

    Raises:
        CorruptData: it is not.
    """
    if not chunk.is_of(frame):
        raise CorruptData(f"the chunk of tile {chunk.tile} is not the one that was published")
    try:
        delta = Delta.from_bytes(frame)
    except InvalidArgument as error:
        raise CorruptData(str(error)) from error
    is_fitting = delta.count == tile.count and delta.width == tile.width
    if not is_fitting or delta.changed != chunk.changed or delta.digest != chunk.digest:
        raise CorruptData(f"the chunk of tile {chunk.tile} is for another tile")
    if delta.rule is not None:
        return delta
    delta_check(delta)
    return replace(delta, is_checked=True)  # its arrays are a copy that nobody else has
