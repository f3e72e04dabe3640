"""The relay: follows a publisher for a cluster, so that each chunk crosses the slow link once."""

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import TimeoutError as LateError
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Final

from rose.errors import (
    CorruptData,
    DeadlineExceeded,
    InvalidArgument,
    OutOfMemory,
    RoseError,
    Unavailable,
)
from rose.transfer.digests import Digest
from rose.transfer.manifest import Chunk, Manifest, Subscription, UpdateKey
from rose.transfer.publishing.log import NAME_MAX, RECEIVERS_MAX
from rose.transfer.publishing.merger import rebuilt
from rose.transfer.publishing.shelf import NO_VERSION, Edge, Limits, Shelf, path
from rose.transfer.publishing.store import MemoryStore
from rose.transfer.relaying.relay_frames import Flight, RelayFrames
from rose.transfer.relaying.snapshot_book import SnapshotBook
from rose.transfer.rounds import Rounds
from rose.transfer.source import Frame, Source
from rose.units import GIB

RETRIES: Final = 3
REPORTS_MAX: Final = 1024
PATIENCE_S: Final = 10.0
MEMORY_BYTES_MAX: Final = GIB
# Longest wait for a version, in seconds; it bounds `Rounds.close`.
WAIT_S: Final = 0.5
# Number of rounds in which a relay asks for a version's merged deltas, which are published after
# the version.
MERGE_ROUNDS: Final = 8


@dataclass(frozen=True, slots=True)
class RelayStatistics:
    """Counters of a relay.

    Args:
        crossing_bytes: bytes of chunks from upstream, damaged chunks included.
        sent_bytes: bytes of chunks sent to receivers.
        landed: updates whose chunks were fetched in advance.
        shared: requests for a chunk that was already being fetched.
        rejected: chunks that did not match their manifest.
        snapshots: snapshots forwarded.
        receivers: receivers that have sent a report.
    """

    crossing_bytes: int
    sent_bytes: int
    landed: int
    shared: int
    rejected: int
    snapshots: int
    receivers: int


class Relay(Shelf):
    """A source that keeps the versions of its upstream source. `follow` gives it a thread.

    One thread calls `round`, which follows upstream's manifests and fetches the tiles of `landing`.
    Any thread may request other tiles: a missing chunk is fetched once, for all requests. Manifests
    pass unchanged, signatures included. While upstream cannot be reached, kept versions are still
    served. The lock guards counts and reports, and is not held during calls to other objects.

    A relay fetches updates from before its first round only on request. To catch up after an outage
    it fetches the updates with the fewest bytes, merged deltas included. It makes all other merged
    deltas from local updates, and checks them against their manifests. Where that fails, it fetches
    their chunks on request.

    Args:
        upstream: source used by the thread that calls `round`.
        store: store of the frames. With a store on disk, nothing is fetched again after a restart.
        landing: tiles to fetch as soon as they are published; None for all.
        reader: source for requests of other threads; None if any thread may call `upstream`.
        limits: limits of the kept versions.
        memory_bytes_max: limit, in bytes, for frames in memory that a full or failing store does
            not accept.
        patience_s: longest wait of a thread for upstream, in seconds.
        retries: further attempts for a damaged chunk.
    """

    def __init__(
        self,
        upstream: Source,
        *,
        store: MemoryStore,
        landing: Subscription | None = None,
        reader: Source | None = None,
        limits: Limits | None = None,
        memory_bytes_max: int = MEMORY_BYTES_MAX,
        patience_s: float = PATIENCE_S,
        retries: int = RETRIES,
    ) -> None:
        super().__init__(store)
        self._upstream = upstream
        self._reader = upstream if reader is None else reader
        self._landing = landing
        self._limits = Limits() if limits is None else limits
        self._frames = RelayFrames(store, memory_bytes_max=memory_bytes_max, retries=retries)
        self._snapshots = SnapshotBook()
        self._whole = RelayFrames(self._snapshots.store, memory_bytes_max=0, retries=retries)
        self._patience_s = patience_s
        self._reading = threading.Lock()  # held while calling `reader`
        self._future = threading.Lock()  # held while waiting for a future version
        self._lock = threading.Lock()
        self._reports: deque[tuple[str, int, bool, Digest]] = deque(maxlen=REPORTS_MAX)
        self._receivers: dict[str, None] = {}  # in order of their last reports
        self._sent_bytes = self._landed = self._forwarded = 0
        # Used by the thread of `round` alone: updates to fetch or to merge, and versions that may
        # still get merged deltas, with the rounds left to check.
        self._to_land: list[UpdateKey] = []
        self._to_merge: list[Manifest] = []
        self._awaiting: dict[int, int] = {}
        self._has_merged = False
        self._has_surveyed = False

    # ---- upstream's side

    def round(self, timeout_s: float) -> None:
        """Forward reports, and fetch new versions if any appear in time.

        Raises:
            Unavailable: upstream cannot be reached; received chunks are kept, call again later.
            DeadlineExceeded: upstream sent nothing for too long.
            CorruptData: an answer is invalid, or a chunk stays damaged.
            OutOfMemory: the store has no room for a manifest.
        """
        self._send_reports()
        # Ask first, but without a wait if an earlier round left chunks to fetch. After a restart,
        # upstream may serve chunks at another address, which its answer states.
        self._learn(self._offered(0 if self._to_land else timeout_s))
        self._has_surveyed = True
        self._land()
        self._look_back()
        self._land()
        self._merge()
        self._trim_to(self._limits)
        self._frames.forget_below(min((one.key.n for one in self.edges()), default=0))

    def _offered(self, timeout_s: float) -> Sequence[Manifest]:
        """Return upstream's new manifests, or all if it began another run."""
        newest = self.newest
        if newest is None or not self._has_surveyed:
            return self._upstream.wait_manifests(NO_VERSION, timeout_s)
        n, run = newest.version.n, newest.version.run
        offered = self._upstream.wait_manifests(n, timeout_s)
        # The numbers of another run may be lower: if nothing is newer, check that upstream still
        # has the same run.
        known = offered or self._upstream.wait_manifests(n - 1, 0)
        if known and known[-1].version.run == run:
            return offered
        return self._upstream.wait_manifests(NO_VERSION, 0)

    def _send_reports(self) -> None:
        while True:
            with self._lock:
                if not self._reports:
                    return
                report = self._reports[0]
            with suppress(InvalidArgument):  # a refused report does not block the others
                self._upstream.report(*report)
            with self._lock:
                if self._reports and self._reports[0] == report:
                    self._reports.popleft()

    def _learn(self, offered: Sequence[Manifest]) -> None:
        """Offer new manifests to receivers, and queue the updates to fetch."""
        before = self.newest
        fresh = [one for one in self._alive(offered) if not self._is_shown(one)]
        if not fresh:
            return
        newest = max(fresh, key=lambda one: one.key).version
        if before is not None and before.version.run != newest.run:
            before = None
            self._forget_run()
        self._forget_others(newest.run, newest.incarnation)
        for one in fresh:
            self._show(one)
        way = self._way(NO_VERSION if before is None else before.version.n)
        self._to_land += way
        for one in fresh:
            length = one.key.n - one.key.base_n
            if one.key not in way:
                self._keep(one, {})
                self._to_merge += [one] if length > 1 else []
            self._has_merged |= length > 1
            if length == 1:
                self._awaiting[one.key.n] = MERGE_ROUNDS if self._has_merged else 2

    def _is_shown(self, manifest: Manifest) -> bool:
        known = self.manifest(manifest.key)
        return known is not None and known.version == manifest.version

    def _forget_run(self) -> None:
        """Drop all data keyed by version number: in another run a number means other weights."""
        self._to_land, self._to_merge, self._awaiting = [], [], {}
        self._frames.forget_below()
        self._whole.forget_below()
        self._snapshots.clear()

    def _alive(self, offered: Sequence[Manifest]) -> list[Manifest]:
        """Return manifests of the latest incarnation; none if the local incarnation is later."""
        if not offered:
            return []
        known = [one.version for one in (*offered, self.newest) if one is not None]
        run = offered[-1].version.run
        latest = max(one.incarnation for one in known if one.run == run)
        return [
            one
            for one in offered
            if (one.version.run, one.version.incarnation) == (run, latest) and not one.is_snapshot
        ]

    def _way(self, start_n: int) -> list[UpdateKey]:
        """Return the updates with the fewest bytes from a version to the newest."""
        manifests = [one for one in self.manifests_after(start_n) if not one.is_announcement]
        edges = [Edge(one.key, sum(c.nbytes for c in self._landing_of(one))) for one in manifests]
        way = path(edges, start_n, self.newest_n)
        return [edge.key for edge in way or ()]

    def _landing_of(self, manifest: Manifest) -> Sequence[Chunk]:
        if self._landing is None:
            return manifest.chunks
        if self._landing.tiles.layout != manifest.layout:
            return ()  # its tile numbers are those of another layout
        return self._landing.chunks_of(manifest)

    def _keep(self, manifest: Manifest, frames: Mapping[int, bytes]) -> None:
        try:
            self._store.put(manifest, frames)
        except (OutOfMemory, Unavailable) as error:
            self._frames.failure = str(error)  # the manifest is offered nevertheless

    def _land(self) -> None:
        while self._to_land:
            manifest = self.manifest(self._to_land[0])
            if manifest is not None:
                self._land_one(manifest)
                with self._lock:
                    self._landed += 1
            self._to_land.pop(0)

    def _land_one(self, manifest: Manifest) -> None:
        key = manifest.key
        wanted = [c for c in self._landing_of(manifest) if self._frames.held(key, c.tile) is None]
        mine, _ = self._frames.begin(key, wanted)
        if not mine:
            self._keep(manifest, {})
            return
        try:
            self._frames.fetch(self._upstream, manifest, mine, turn=nullcontext())
        except CorruptData as error:
            self._frames.failure = str(error)  # a request for the chunk fetches it again

    def _look_back(self) -> None:
        """Ask for merged deltas to known versions: they are published after the versions."""
        opening = self.opening
        origin = 0 if opening is None else opening.version.n
        for n in [n for n in self._awaiting if (n - origin) % 2]:
            del self._awaiting[n]  # no merged delta of this chain leads to version n
        if not self._awaiting:
            return
        oldest = min(self._awaiting)
        self._awaiting = {n: left - 1 for n, left in self._awaiting.items() if left > 1}
        newest = self.newest
        run = "" if newest is None else newest.version.run
        known = self._upstream.wait_manifests(oldest - 1, 0)
        self._learn([one for one in known if one.version.run == run])

    def _merge(self) -> None:
        """Make merged deltas from local updates, first those over the fewest versions."""
        pending, self._to_merge = self._to_merge, []
        for merged in sorted(pending, key=lambda one: one.key.n - one.key.base_n):
            chunks = self._landing_of(merged)
            frames = rebuilt(chunks, self._parts(merged.key), self._frames.held)
            self._keep(merged, frames)

    def _parts(self, key: UpdateKey) -> list[Manifest]:
        """Return consecutive shorter updates that together replace an update, or []."""
        edges = [edge for edge in self.edges() if edge.key != key and edge.nbytes]
        way = path(edges, key.base_n, key.n)
        found = [self.manifest(edge.key) for edge in way or ()]
        return [] if None in found else [one for one in found if one is not None]

    # ---- the receivers' side

    def report(self, receiver: str, n: int, is_match: bool, digest: Digest) -> None:  # noqa: FBT001
        """Queue a report for the next round; beyond a limit the oldest reports are dropped."""
        if len(receiver) > NAME_MAX:
            raise InvalidArgument(
                f"a receiver's name must have at most {NAME_MAX} characters, got {len(receiver)}"
            )
        with self._lock:
            self._reports.append((receiver, n, is_match, digest))
            self._receivers.pop(receiver, None)
            self._receivers[receiver] = None
            if len(self._receivers) > RECEIVERS_MAX:
                del self._receivers[next(iter(self._receivers))]

    def snapshot(self, n: int | None, tiles: Sequence[int]) -> Manifest | None:
        """Return a snapshot of version `n` that was forwarded before, or ask upstream.

        If `n` is None, upstream is asked first. If upstream cannot be reached, an earlier answer is
        returned.

        Raises:
            Unavailable: upstream cannot be reached, and there is no earlier answer.
            DeadlineExceeded: other requests took too long.
            OutOfMemory: upstream has no room for a snapshot.
        """
        if n is not None and (known := self._snapshots.find(n, tiles)) is not None:
            return known
        try:
            with self._turn():
                manifest = self._reader.snapshot(n, tiles)
        except Unavailable:
            if (known := self._snapshots.find(n, tiles)) is not None:
                return known
            raise
        if manifest is not None:
            self._snapshots.note(manifest)
            with self._lock:
                self._forwarded += 1
        return manifest

    def chunk(self, key: UpdateKey, tile: int) -> bytes | None:
        """Return the frame of a tile, fetched from upstream if it is not here.

        Returns:
            The frame; None if it is no longer kept.

        Raises:
            Unavailable: upstream cannot be reached, or has not offered this update yet.
            DeadlineExceeded: the chunk did not arrive in time.
            CorruptData: the chunk arrived damaged in every attempt.
        """
        return self.read(key, (tile,))[tile]

    def frames_of(self, key: UpdateKey, tiles: Sequence[int]) -> Iterable[tuple[int, Frame | None]]:
        """Return the frames of several tiles, fetched from upstream together."""
        return self.read(key, tiles).items()

    def held(self, key: UpdateKey, tile: int) -> bytes | None:
        """Return a frame that is kept here, else None; upstream is not asked."""
        return (self._whole if key.is_whole else self._frames).held(key, tile)

    def read(self, key: UpdateKey, tiles: Sequence[int]) -> dict[int, bytes | None]:
        """Return frames of several tiles; see `chunk`."""
        found = {tile: self.held(key, tile) for tile in tiles}
        missing = [tile for tile, frame in found.items() if frame is None]
        if missing:
            found |= self._read_through(key, missing)
        with self._lock:
            self._sent_bytes += sum(len(frame) for frame in found.values() if frame is not None)
        return found

    def _read_through(self, key: UpdateKey, tiles: Sequence[int]) -> dict[int, bytes | None]:
        manifest = self._known(key)
        if manifest is None:
            return {}
        wanted = [chunk for chunk in manifest.chunks if chunk.tile in tiles]
        frames = self._whole if key.is_whole else self._frames
        mine, flights = frames.begin(key, wanted)
        found: dict[int, bytes | None] = {}
        if mine:
            try:
                found |= frames.fetch(self._reader, manifest, mine, turn=self._turn())
            finally:  # nothing else would drop the frames of an update trimmed during the fetch
                if not key.is_whole and not self._is_shown(manifest):
                    self._store.forget(key)
        for chunk in wanted:
            if (flight := flights.get(chunk.tile)) is not None:
                found[chunk.tile] = _landed(flight, self._patience_s)
            elif chunk.tile not in found:
                found[chunk.tile] = frames.held(key, chunk.tile)
        if key.is_whole:
            if None in found.values():
                # Upstream must make the snapshot again, or report that it cannot.
                self._snapshots.forget(key)
            self._snapshots.trim()
        elif None in found.values() and not self._store.nbytes_of(key):
            self._forget([key])  # upstream no longer keeps the update, so it is useless
        return found

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Wait for exclusive use of `reader`.

        Raises:
            DeadlineExceeded: other requests took too long.
        """
        if not self._reading.acquire(timeout=self._patience_s):
            raise DeadlineExceeded(
                f"upstream was busy with other requests for {self._patience_s} s"
            )
        try:
            yield
        finally:
            self._reading.release()

    def _known(self, key: UpdateKey) -> Manifest | None:
        """Return the manifest with the chunks of a key; wait if its version is not here yet.

        One caller at a time waits, and others fail at once. So requests for versions that never
        appear do not occupy all threads.

        Raises:
            Unavailable: upstream has not offered that version yet.
        """
        if key.is_whole:
            return self._snapshots.chunks(key)
        if key.n > self.newest_n and not self._comes(key.n):
            raise Unavailable(f"version {key.n} has not arrived here yet")
        return self.manifest(key)

    def _comes(self, n: int) -> bool:
        if not self._future.acquire(blocking=False):
            return False
        try:
            return bool(self.wait_manifests(n - 1, self._patience_s))
        finally:
            self._future.release()

    # ---- counters

    @property
    def failure(self) -> str | None:
        """Return the last failure of the store or of a chunk, if any."""
        return self._frames.failure

    def statistics(self) -> RelayStatistics:
        """Return the counters."""
        with self._lock:
            return RelayStatistics(
                crossing_bytes=self._frames.crossing_bytes + self._whole.crossing_bytes,
                sent_bytes=self._sent_bytes,
                landed=self._landed,
                shared=self._frames.shared + self._whole.shared,
                rejected=self._frames.rejected + self._whole.rejected,
                snapshots=self._forwarded,
                receivers=len(self._receivers),
            )


def follow(relay: Relay) -> Rounds:
    """Start a thread that calls `round` of a relay; nobody else may call it.

    After the returned object is closed, the relay can still serve.
    """
    rounds = Rounds(lambda: relay.round(WAIT_S), who="relay", name="rose-relay")
    rounds.start()
    return rounds


def _landed(flight: Flight, timeout_s: float) -> bytes | None:
    try:
        return flight.result(timeout_s)
    except LateError:
        raise DeadlineExceeded(f"a requested chunk did not arrive within {timeout_s} s") from None
    except RoseError as error:  # each caller gets its own exception
        raise type(error)(str(error)) from error
