"""The relay: follows a publisher for a cluster, so that each chunk crosses the slow link once."""

import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
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
from rose.transfer.manifest import Chunk, Manifest, UpdateKey
from rose.transfer.publishing.log import NAME_MAX, RECEIVERS_MAX
from rose.transfer.publishing.retention import Limits, Link, path
from rose.transfer.publishing.shelf import NO_VERSION, Shelf
from rose.transfer.publishing.store import MemoryStore
from rose.transfer.receiving.subscription import Subscription
from rose.transfer.relaying.relay_frames import Flight, RelayFrames
from rose.transfer.relaying.relay_spans import rebuilt
from rose.transfer.relaying.seed_book import SeedBook
from rose.transfer.source import Source
from rose.units import GIB

RETRIES: Final = 3
REPORTS_MAX: Final = 1024
PATIENCE_S: Final = 10.0
MEMORY_BYTES_MAX: Final = GIB
# A span is made after its version was published: so many rounds a relay looks back for it.
SPAN_ROUNDS: Final = 8


@dataclass(frozen=True, slots=True)
class RelayStatistics:
    """What a relay did so far.

    Args:
        crossing_bytes: of chunks that came from upstream, damaged ones included.
        sent_bytes: of chunks that were handed on.
        landed: updates whose chunks were fetched before anybody asked.
        read_through: chunks that were fetched because they were asked for.
        shared: times that a chunk was asked for while it was on its way.
        rebuilt: chunks of spans that were merged here, and so did not cross.
        rejected: chunks that were not what their manifest says.
        seeds: that were forwarded.
        receivers: that reported.
    """

    crossing_bytes: int
    sent_bytes: int
    landed: int
    read_through: int
    shared: int
    rebuilt: int
    rejected: int
    seeds: int
    receivers: int


class Relay(Shelf):
    """A source that keeps what another one has. Threadless: `Follower` gives it a thread.

    One thread calls `round`, which follows upstream's manifests and fetches the tiles that land
    here. Any thread may ask for the rest: what is not here is fetched once, however many ask.
    Manifests pass as they came, signatures included. While upstream is away, what is here is
    served on. The lock guards counts and reports, and is held over no call.

    Of the history before its first round a relay fetches only what is asked for. Spans are merged
    from the updates that are here and compared with their manifests, so they do not cross either.

    Args:
        upstream: of the thread that calls `round`.
        store: of frames; with one on a disk nothing crosses again after a restart.
        landing: the tiles that come here as soon as they are published; None for all.
        reader: upstream for what is asked for meanwhile; None where any thread may call `upstream`.
        limits: of what is kept.
        memory_bytes_max: of frames that the store does not take, because it is full or slow.
        patience_s: how long a thread waits for upstream.
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
        self._seeds = SeedBook()
        self._whole = RelayFrames(self._seeds.store, memory_bytes_max=0, retries=retries)
        self._patience_s = patience_s
        self._reading = threading.Lock()  # held by the one that calls `reader`
        self._future = threading.Lock()  # of the one that waits for a version to come
        self._lock = threading.Lock()
        self._reports: deque[tuple[str, int, bool, Digest]] = deque(maxlen=REPORTS_MAX)
        self._receivers: dict[str, None] = {}  # who reported; the one silent for longest is first
        self._sent_bytes = self._landed = self._read = self._rebuilt = self._forwarded = 0
        # Of the thread of `round` alone: what is to land or to be merged, and the versions to which
        # spans may still come, with the rounds for which a relay looks.
        self._to_land: list[UpdateKey] = []
        self._to_merge: list[Manifest] = []
        self._awaiting: dict[int, int] = {}
        self._has_spans = False
        self._has_surveyed = False

    # ---- the side of upstream

    def round(self, timeout_s: float) -> None:
        """Pass reports on, and fetch what is new if there is something within the time.

        Raises:
            Unavailable: upstream cannot be reached; call again later, what came is kept.
            DeadlineExceeded: it said nothing for too long.
            CorruptData: what it says makes no sense, or a chunk stays damaged.
            OutOfMemory: the store has no room for a manifest.
        """
        self._send_reports()
        # It asks before it fetches what is left from another round, without waiting then: an
        # upstream that came back may have its chunks elsewhere, and says where when it tells.
        self._learn(self._offered(0 if self._to_land else timeout_s))
        self._has_surveyed = True
        self._land()
        self._look_back()
        self._land()
        self._merge()
        self._trim_to(self._limits)
        self._frames.forget_below(min((one.key.n for one in self.links()), default=0))

    def _offered(self, timeout_s: float) -> Sequence[Manifest]:
        """Return what is new at upstream, and all that it has where it began another run."""
        newest = self.newest
        if newest is None or not self._has_surveyed:
            return self._upstream.wait_manifests(NO_VERSION, timeout_s)
        n, run = newest.version.n, newest.version.run
        offered = self._upstream.wait_manifests(n, timeout_s)
        # Another run has numbers of its own: where nothing is above, is that still what it tells?
        told = offered or self._upstream.wait_manifests(n - 1, 0)
        if told and told[-1].version.run == run:
            return offered
        return self._upstream.wait_manifests(NO_VERSION, 0)

    def _send_reports(self) -> None:
        while True:
            with self._lock:
                if not self._reports:
                    return
                report = self._reports[0]
            with suppress(InvalidArgument):  # what upstream does not take is only that one
                self._upstream.report(*report)
            with self._lock:
                if self._reports and self._reports[0] == report:
                    self._reports.popleft()

    def _learn(self, offered: Sequence[Manifest]) -> None:
        """Show what is new, and note what of it lands here."""
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
            self._has_spans |= length > 1
            if length == 1:
                self._awaiting[one.key.n] = SPAN_ROUNDS if self._has_spans else 2

    def _is_shown(self, manifest: Manifest) -> bool:
        known = self.manifest(manifest.key)
        return known is not None and known.version == manifest.version

    def _forget_run(self) -> None:
        """Drop what is noted by numbers, which mean other weights in another run."""
        self._to_land, self._to_merge, self._awaiting = [], [], {}
        self._frames.forget_below()
        self._whole.forget_below()
        self._seeds.clear()

    def _alive(self, offered: Sequence[Manifest]) -> list[Manifest]:
        """Return those of the latest chain, unless that is older than the one that is here."""
        if not offered:
            return []
        known = [one.version for one in (*offered, self.newest) if one is not None]
        run = offered[-1].version.run
        latest = max(one.incarnation for one in known if one.run == run)
        return [
            one
            for one in offered
            if (one.version.run, one.version.incarnation) == (run, latest) and not one.is_seed
        ]

    def _way(self, start_n: int) -> list[UpdateKey]:
        """Return the updates by which the fewest bytes cross from a version to the newest."""
        manifests = [one for one in self.manifests_after(start_n) if not one.is_announcement]
        links = [Link(one.key, sum(c.nbytes for c in self._landing_of(one))) for one in manifests]
        way = path(links, start_n, self.newest_n)
        return [link.key for link in way or ()]

    def _landing_of(self, manifest: Manifest) -> Sequence[Chunk]:
        if self._landing is None:
            return manifest.chunks
        if self._landing.tiles.layout != manifest.layout:
            return ()  # its numbers are those of other tiles
        return self._landing.chunks_of(manifest)

    def _keep(self, manifest: Manifest, frames: Mapping[int, bytes]) -> None:
        try:
            self._store.put(manifest, frames)
        except (OutOfMemory, Unavailable) as error:
            self._frames.failure = str(error)  # it is shown all the same

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
            self._frames.failure = str(error)  # whoever asks for it lets it be tried again

    def _look_back(self) -> None:
        """Ask for spans to versions that are here: they are made after those were published."""
        opening = self.opening
        origin = 0 if opening is None else opening.version.n
        for n in [n for n in self._awaiting if (n - origin) % 2]:
            del self._awaiting[n]  # no span of a chain that began there leads to it
        if not self._awaiting:
            return
        oldest = min(self._awaiting)
        self._awaiting = {n: left - 1 for n, left in self._awaiting.items() if left > 1}
        newest = self.newest
        run = "" if newest is None else newest.version.run
        told = self._upstream.wait_manifests(oldest - 1, 0)
        self._learn([one for one in told if one.version.run == run])

    def _merge(self) -> None:
        """Make spans of what is here, shorter ones first."""
        spans, self._to_merge = self._to_merge, []
        for span in sorted(spans, key=lambda one: one.key.n - one.key.base_n):
            chunks = self._landing_of(span)
            frames = rebuilt(chunks, self._parts(span.key), self._frames.held)
            self._keep(span, frames)
            with self._lock:
                self._rebuilt += len(frames)

    def _parts(self, key: UpdateKey) -> list[Manifest]:
        """Return shorter updates that lead where one leads, in order; [] where there are none."""
        links = [link for link in self.links() if link.key != key and link.nbytes]
        way = path(links, key.base_n, key.n)
        found = [self.manifest(link.key) for link in way or ()]
        return [] if None in found else [one for one in found if one is not None]

    # ---- the side of the receivers

    def report(self, receiver: str, n: int, is_match: bool, digest: Digest) -> None:  # noqa: FBT001
        """Pass an answer on with the next round; of too many, the oldest are dropped."""
        if len(receiver) > NAME_MAX:
            raise InvalidArgument(f"a receiver's name has at most {NAME_MAX} characters")
        with self._lock:
            self._reports.append((receiver, n, is_match, digest))
            self._receivers.pop(receiver, None)
            self._receivers[receiver] = None
            if len(self._receivers) > RECEIVERS_MAX:
                del self._receivers[next(iter(self._receivers))]

    def seed(self, n: int | None, tiles: Sequence[int]) -> Manifest | None:
        """Ask upstream; while it is away, return what it said before, if that is known.

        Raises:
            Unavailable: upstream is away, and it never was asked for this.
            DeadlineExceeded: others asked for too long.
            OutOfMemory: upstream has no room for a seed.
        """
        if n is not None and (known := self._seeds.find(n, tiles)) is not None:
            return known
        try:
            with self._turn():
                manifest = self._reader.seed(n, tiles)
        except Unavailable:
            if (known := self._seeds.find(n, tiles)) is not None:
                return known
            raise
        if manifest is not None:
            self._seeds.note(manifest)
            with self._lock:
                self._forwarded += 1
        return manifest

    def chunk(self, key: UpdateKey, tile: int) -> bytes | None:
        """Return the frame of a tile, fetched from upstream where it is not here.

        Returns:
            None where it is kept no more.

        Raises:
            Unavailable: upstream is away, or has not told of this update yet.
            DeadlineExceeded: it did not come in time.
            CorruptData: it stays damaged.
        """
        return self.read(key, (tile,))[tile]

    def held(self, key: UpdateKey, tile: int) -> bytes | None:
        """Return a frame that is here; upstream is not asked."""
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
            finally:  # what was trimmed while it crossed would stay in the store for good
                if not key.is_whole and not self._is_shown(manifest):
                    self._store.forget(key)
        for chunk in wanted:
            if (flight := flights.get(chunk.tile)) is not None:
                found[chunk.tile] = _landed(flight, self._patience_s)
            elif chunk.tile not in found:
                found[chunk.tile] = frames.held(key, chunk.tile)
        if key.is_whole:
            if None in found.values():
                self._seeds.forget(key)  # upstream has to make it again, or to say that it cannot
            self._seeds.trim()
        elif None in found.values() and not self._store.tiles(key):
            self._forget([key])  # upstream has it no more, so nobody can go by it
        with self._lock:
            self._read += len(mine)
        return found

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Be the one that calls `reader`.

        Raises:
            DeadlineExceeded: others called it for too long.
        """
        if not self._reading.acquire(timeout=self._patience_s):
            raise DeadlineExceeded(f"upstream was busy with others for {self._patience_s} s")
        try:
            yield
        finally:
            self._reading.release()

    def _known(self, key: UpdateKey) -> Manifest | None:
        """Return the manifest with the chunks of a key; one from the future is waited for.

        By one caller at a time: whoever asks for versions that never come keeps nobody else.

        Raises:
            Unavailable: upstream has not told of that version yet.
        """
        if key.is_whole:
            return self._seeds.chunks(key)
        if key.n > self.newest_n and not self._comes(key.n):
            raise Unavailable(f"version {key.n} has not come here yet")
        return self.manifest(key)

    def _comes(self, n: int) -> bool:
        if not self._future.acquire(blocking=False):
            return False
        try:
            return bool(self.wait_manifests(n - 1, self._patience_s))
        finally:
            self._future.release()

    # ---- what it counted

    @property
    def failure(self) -> str | None:
        """Return what the store or a chunk last failed with; None if nothing did."""
        return self._frames.failure

    def statistics(self) -> RelayStatistics:
        """Return the figures so far."""
        with self._lock:
            return RelayStatistics(
                crossing_bytes=self._frames.crossing_bytes + self._whole.crossing_bytes,
                sent_bytes=self._sent_bytes,
                landed=self._landed,
                read_through=self._read,
                shared=self._frames.shared + self._whole.shared,
                rebuilt=self._rebuilt,
                rejected=self._frames.rejected + self._whole.rejected,
                seeds=self._forwarded,
                receivers=len(self._receivers),
            )


def _landed(flight: Flight, timeout_s: float) -> bytes | None:
    try:
        return flight.result(timeout_s)
    except LateError:
        raise DeadlineExceeded(
            f"a chunk that is fetched did not come within {timeout_s} s"
        ) from None
    except RoseError as error:  # each caller raises its own
        raise type(error)(str(error)) from error
