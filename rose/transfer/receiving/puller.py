"""The puller: gets the chunks of a version, and lets none through that was not published."""

import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import Final

from rose.errors import CorruptData, InvalidArgument
from rose.transfer.codec.delta import Delta
from rose.transfer.codec.operations import delta_check
from rose.transfer.manifest import Chunk, Manifest, StagedVersion
from rose.transfer.receiving.subscription import Subscription
from rose.transfer.source import Frame, Source
from rose.transfer.tiles import Tile, Tiles

RETRIES: Final = 3
BACKOFF_S: Final = 0.05


class Puller:
    """Pulls one version at a time. One thread uses it.

    What was pulled of a version stays when the source breaks off, and until `forget`, so that it
    does not cross again where what is made of it fails. It is dropped with the first chunk of
    another version: a dead incarnation leaves nothing behind.

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
        with closing(self._source.chunks(manifest.key, missing)) as frames:
            for tile, frame in frames:
                if frame is None or self._stop.is_set():
                    return None
                self.received_bytes += len(frame)
                chunk = by_tile.pop(tile, None)
                if chunk is None:
                    continue  # nobody asked for it, or it is here already
                try:
                    self._pulled[tile] = sound_delta(frame, chunk, tiles[tile])
                except CorruptData as error:
                    faults[tile] = str(error)
        faults.update(dict.fromkeys(by_tile, "it did not come"))
        return faults


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
