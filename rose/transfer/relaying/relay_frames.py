"""The frames of a relay: stored, in flight, and fetched on request.

A frame that differs from its manifest is neither kept nor sent on: a relay must not spread damage.
A relay cannot verify who made a manifest; its receivers can.
"""

import math
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, closing
from typing import TypeAlias

from rose.errors import CorruptData, OutOfMemory, RoseError, Unavailable
from rose.transfer.manifest import Chunk, Manifest, UpdateKey
from rose.transfer.publishing.store import MemoryStore
from rose.transfer.source import Frame, Source

FrameKey: TypeAlias = tuple[UpdateKey, int]  # update, tile
# A fetch in progress. Its result is the frame, or None if the source no longer keeps the chunk.
Flight: TypeAlias = Future[bytes | None]


class RelayFrames:
    """Fetches each chunk once, and keeps the frames.

    Any thread may call. The lock guards counts, flights and received frames. It is not held during
    calls to source and store.

    Args:
        store: store of the frames.
        memory_bytes_max: limit, in bytes, for frames in memory that a full or failing store does
            not accept.
        retries: further attempts for a damaged chunk.
    """

    def __init__(self, store: MemoryStore, *, memory_bytes_max: int, retries: int) -> None:
        self._store = store
        self._memory_bytes_max = memory_bytes_max
        self._retries = retries
        self._lock = threading.Lock()
        self._flights: dict[FrameKey, Flight] = {}
        self._arrived: dict[FrameKey, bytes] = {}  # received, not yet in the store
        self._arrived_bytes = 0
        self.crossing_bytes = 0
        self.rejected = 0
        self.shared = 0
        self.failure: str | None = None

    def held(self, key: UpdateKey, tile: int) -> bytes | None:
        """Return a frame that is kept here; None if it is not."""
        with self._lock:
            frame = self._arrived.get((key, tile))
        if frame is not None:
            return frame
        try:
            return self._store.get(key, tile)
        except Unavailable as error:  # treated as missing: it can be fetched again
            self.failure = str(error)
            return None

    def begin(
        self, key: UpdateKey, chunks: Iterable[Chunk]
    ) -> tuple[list[Chunk], dict[int, Flight]]:
        """Return the chunks that the caller must `fetch`, and the flights of other callers by tile.

        A chunk that has arrived meanwhile is in neither; `held` returns its frame.
        """
        mine: list[Chunk] = []
        others: dict[int, Flight] = {}
        with self._lock:
            for chunk in chunks:
                if (flight := self._flights.get((key, chunk.tile))) is not None:
                    others[chunk.tile] = flight
                else:
                    self._flights[key, chunk.tile] = Future()
                    mine.append(chunk)
            self.shared += len(others)
        fetched: list[Chunk] = []
        is_known = False
        try:
            for chunk in mine:
                # The frame may have arrived between the caller's check and the start of the flight.
                if (frame := self.held(key, chunk.tile)) is not None:
                    self._land((key, chunk.tile), frame)
                else:
                    fetched.append(chunk)
            is_known = True
        finally:
            if not is_known:  # nobody will fetch these chunks: end all waits for them
                self._fail(key, mine, Unavailable("the fetch was interrupted"))
        return fetched, others

    def _land(self, place: FrameKey, frame: bytes | None) -> None:
        """End a flight with its frame, which `held` must be able to return already."""
        with self._lock:
            flight = self._flights.pop(place)
        flight.set_result(frame)

    def _fail(self, key: UpdateKey, chunks: Iterable[Chunk], error: RoseError) -> None:
        """End the flights of these chunks with an error."""
        for chunk in chunks:
            with self._lock:
                flight = self._flights.pop((key, chunk.tile), None)
            if flight is not None:
                flight.set_exception(error)

    def fetch(
        self,
        source: Source,
        manifest: Manifest,
        chunks: Sequence[Chunk],
        *,
        turn: AbstractContextManager[None],
    ) -> dict[int, bytes | None]:
        """Fetch and keep chunks; return frames by tile, None for chunks that are no longer kept.

        Args:
            source: source of the chunks.
            manifest: manifest of the chunks.
            chunks: chunks from `begin`.
            turn: context entered while the source is called.

        Raises:
            RoseError: entering `turn` failed.
            Unavailable: the source failed; received frames are kept.
            DeadlineExceeded: nothing arrived for too long; received frames are kept.
            CorruptData: a chunk was missing or damaged in every attempt.
        """
        pending = {chunk.tile: chunk for chunk in chunks}
        came: dict[int, bytes | None] = {}
        error: RoseError = Unavailable("the fetch was interrupted")
        try:
            with turn:
                for _ in range(self._retries + 1):
                    if pending:
                        self._attempt(source, manifest, pending, came)
            if pending:
                error = CorruptData(
                    f"tile {min(pending)} of {manifest.version} did not arrive undamaged in "
                    f"{self._retries + 1} attempts"
                )
                raise error
        except RoseError as met:
            error = met
            raise
        finally:
            self._fail(manifest.key, pending.values(), error)
            self._keep(manifest, came)
        return came

    def _attempt(
        self,
        source: Source,
        manifest: Manifest,
        pending: dict[int, Chunk],
        came: dict[int, bytes | None],
    ) -> None:
        with closing(source.chunks(manifest.key, list(pending.values()))) as frames:
            for tile, frame in frames:
                if (chunk := pending.get(tile)) is None:
                    continue  # not requested, or here already
                sound = None if frame is None else self._sound(frame, chunk)
                if frame is not None and sound is None:
                    continue
                place = (manifest.key, tile)
                if sound is not None:
                    with self._lock:
                        self._arrived[place] = sound
                        self._arrived_bytes += len(sound)
                came[tile] = sound
                del pending[tile]
                self._land(place, sound)

    def _sound(self, frame: Frame, chunk: Chunk) -> bytes | None:
        content = bytes(frame)  # a copy is compared, because a publisher's memory may change
        is_sound = chunk.is_of(content)
        with self._lock:
            self.crossing_bytes += len(content)
            self.rejected += not is_sound
        return content if is_sound else None

    def _keep(self, manifest: Manifest, came: dict[int, bytes | None]) -> None:
        """Store received frames; frames that the store refuses stay in memory, up to the limit."""
        frames = {tile: frame for tile, frame in came.items() if frame is not None}
        if not frames:
            return
        try:
            self._store.put(manifest, frames)
        except (OutOfMemory, Unavailable) as error:
            self.failure = str(error)
            with self._lock:
                for place in sorted(self._arrived):  # the oldest first
                    if self._arrived_bytes > self._memory_bytes_max:
                        self._drop(place)
        else:
            with self._lock:
                for tile in frames:
                    self._drop((manifest.key, tile))

    def forget_below(self, n: float = math.inf) -> None:
        """Drop frames of versions below `n` from memory, by default frames of all versions."""
        with self._lock:
            for place in [place for place in self._arrived if place[0].n < n]:
                self._drop(place)

    def _drop(self, place: FrameKey) -> None:
        self._arrived_bytes -= len(self._arrived.pop(place, b""))
