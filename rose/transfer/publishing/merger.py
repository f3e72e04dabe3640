"""Merged deltas over 2, 4, 8 ... versions, each made of two halves.

A merge of 2^k versions begins a multiple of 2^k versions after the version that opened the log. So
a receiver that is L versions behind needs at most 2 log2(L) + 1 updates, and each version is merged
once per level.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rose.closing import Closing
from rose.errors import CorruptData, InvalidArgument, OutOfMemory, Unavailable, check, sentence
from rose.thread import Thread
from rose.transfer.codec.delta import Delta
from rose.transfer.codec.operations import delta_merge
from rose.transfer.manifest import Chunk, Manifest, UpdateKey, Version
from rose.transfer.publishing.contributor import chunk_of
from rose.transfer.publishing.log import VersionLog
from rose.transfer.signing import Signing
from rose.units import GIB

LEVELS_MAX: Final = 20
# Limit in bytes, for queued versions and again for deltas that wait for their other half. Above the
# limit, the oldest versions and the largest waiting deltas are dropped.
WAITING_BYTES_MAX: Final = 2 * GIB
_LOOK_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Update:
    """An update with its deltas, before wire encoding.

    Args:
        manifest: manifest as published.
        deltas: deltas of the tiles that change, by tile.
    """

    manifest: Manifest
    deltas: Mapping[int, Delta]

    @property
    def nbytes(self) -> int:
        """Return the size of all deltas, in bytes."""
        return sum(delta.nbytes for delta in self.deltas.values())


def merged_deltas(first: Mapping[int, Delta], second: Mapping[int, Delta]) -> dict[int, Delta]:
    """Merge two consecutive updates; tiles that end as they began are left out.

    Raises:
        CorruptData: the base of the second is not the result of the first.
    """
    merged = {**first, **second}
    for tile in first.keys() & second.keys():
        merged[tile] = delta_merge(first[tile], second[tile])
    return {tile: merged[tile] for tile in sorted(merged) if merged[tile].changed}


def merged_update(
    first: Update, second: Update, signing: Signing
) -> tuple[Update, dict[int, bytes]]:
    """Return two consecutive updates as one signed update, and its frames by tile."""
    check(second.manifest.base == first.manifest.version, "the updates are not consecutive")
    deltas = merged_deltas(first.deltas, second.deltas)
    frames = {tile: delta.to_bytes() for tile, delta in deltas.items()}
    target = second.manifest
    manifest = Manifest(
        version=target.version,
        base=first.manifest.base,
        digest=target.digest,
        base_digest=first.manifest.base_digest,
        layout=target.layout,
        tile_count=target.tile_count,
        count=target.count,
        chunks=tuple(chunk_of(tile, deltas[tile], frame) for tile, frame in frames.items()),
    )
    return Update(signing.signed(manifest), deltas), frames


def rebuilt(
    chunks: Iterable[Chunk],
    parts: Sequence[Manifest],
    held: Callable[[UpdateKey, int], bytes | None],
) -> dict[int, bytes]:
    """Return frames of a merged delta by tile, as far as shorter updates suffice to make them.

    A merge here gives the same bytes as at the publisher, so the SHA-256 of a chunk verifies the
    merged frame. Chunks that do not match, and chunks with missing or STRAT-encoded parts, are left
    out.

    Args:
        chunks: chunks of the merged delta.
        parts: consecutive updates, in order; together they have the merged delta's start and end.
        held: function that returns a frame of these updates; None if it is not here.
    """
    made: dict[int, bytes] = {}
    tiles_of = [(part.key, {chunk.tile for chunk in part.chunks}) for part in parts]
    for chunk in chunks:
        frames = [held(key, chunk.tile) for key, tiles in tiles_of if chunk.tile in tiles]
        whole = [frame for frame in frames if frame is not None]
        if not whole or len(whole) < len(frames):
            continue
        frame = whole[0] if len(whole) == 1 else _merged(whole)
        if frame is not None and chunk.is_of(frame):
            made[chunk.tile] = frame
    return made


def _merged(frames: Sequence[bytes]) -> bytes | None:
    try:
        merged, *others = (Delta.from_bytes(frame) for frame in frames)
        for delta in others:
            merged = delta_merge(merged, delta)
    except (CorruptData, InvalidArgument):
        return None  # such as a STRAT delta, which only its base can decode
    return merged.to_bytes()


class Merger:
    """Merges the versions of one chain, one merge per step. `MergerThread` gives it a thread.

    Any thread calls `note`; one thread calls `step`.

    Args:
        log: log of the versions, which stores the merged deltas.
        signing: signing key of the publisher.
    """

    def __init__(self, log: VersionLog, signing: Signing) -> None:
        self._log = log
        self._signing = signing
        self._waiting_bytes_max = WAITING_BYTES_MAX
        self._lock = threading.Lock()  # guards _noted and _noted_bytes
        self._noted: deque[Update] = deque()
        self._noted_bytes = 0
        self._origin = 0
        self._last: Version | None = None
        self._halves: dict[int, Update] = {}  # by level: first halves that wait for the second
        self._rising: tuple[int, Update] | None = None  # level and update of the next merge
        self.made = 0
        self.failure: str | None = None  # cause of the last failure

    def note(self, manifest: Manifest, deltas: Mapping[int, Delta]) -> None:
        """Queue a version of the log; computes nothing and does not wait.

        Args:
            manifest: manifest of the version; its base is the version before.
            deltas: deltas as packed, by tile, before wire encoding.
        """
        update = Update(manifest, deltas)
        with self._lock:
            self._noted.append(update)
            self._noted_bytes += update.nbytes
            while self._noted_bytes > self._waiting_bytes_max:
                self._noted_bytes -= self._noted.popleft().nbytes

    def step(self) -> bool:
        """Do one merge, or take the next version; return whether work is left."""
        if self._rising is None:
            with self._lock:
                if not self._noted:
                    return False
                update = self._noted.popleft()
                self._noted_bytes -= update.nbytes
            self._begin(update)
        else:
            self._rise(*self._rising)
        with self._lock:
            return self._rising is not None or bool(self._noted)

    def _begin(self, update: Update) -> None:
        base = update.manifest.base
        check(base is not None, "a version without a base cannot be merged")
        if base != self._last:  # the first version, or the first after a gap: start over
            self._origin, self._halves = update.manifest.key.base_n, {}
        self._last = update.manifest.version
        self._rising = (0, update)

    def _rise(self, level: int, update: Update) -> None:
        """Merge an update with the half before it, or store it until the half after it exists."""
        self._rising = None
        is_first = ((update.manifest.key.base_n - self._origin) >> level) % 2 == 0
        if level >= LEVELS_MAX:
            return
        if is_first:
            self._halves[level] = update
            self._drop_oldest()
            return
        first = self._halves.pop(level, None)
        if first is None or first.manifest.version != update.manifest.base:
            return
        try:
            merged, frames = merged_update(first, update, self._signing)
            self._log.append_merged(merged.manifest, frames)
        except (CorruptData, OutOfMemory, Unavailable) as error:
            self.failure = str(error)  # merged deltas are optional: the versions suffice
            return
        self.made += 1
        self._rising = (level + 1, merged)

    def _drop_oldest(self) -> None:
        """Enforce the limit: drop halves of the highest level first, which are the largest."""
        while sum(one.nbytes for one in self._halves.values()) > self._waiting_bytes_max:
            del self._halves[max(self._halves)]


class MergerThread(Merger, Closing):
    """`Merger` with a thread, for use in a `with` block.

    Args:
        log: log of the versions, which stores the merged deltas.
        signing: signing key of the publisher.
    """

    def __init__(self, log: VersionLog, signing: Signing) -> None:
        super().__init__(log, signing)
        self._bell = threading.Event()  # set when a version is queued, and at `close`
        self._is_closed = False
        self._thread = Thread(self._run, name="rose-merger", on_failure=self._broke)
        self._thread.start()

    def _broke(self, failure: BaseException) -> None:
        self.failure = f"no more deltas are merged: {sentence(failure)}"

    def note(self, manifest: Manifest, deltas: Mapping[int, Delta]) -> None:
        """Queue a version of the log; see `Merger.note`."""
        super().note(manifest, deltas)
        self._bell.set()

    def close(self) -> None:
        """Stop after the merge in progress, and join the thread."""
        self._is_closed = True
        self._bell.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_closed:
            if not self.step():
                self._bell.wait(_LOOK_S)
                self._bell.clear()
