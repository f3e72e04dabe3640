"""The log of versions: publishers append, receivers pull, within limits of size and age."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from rose.errors import InvalidArgument, OutOfMemory, Unavailable
from rose.transfer.digests import Digest
from rose.transfer.manifest import Manifest, UpdateKey, Version
from rose.transfer.publishing.shadow_memory import SharedTiles
from rose.transfer.publishing.shelf import BYTES_MAX, MERGED_MAX, VERSIONS_MAX, Limits, Shelf
from rose.transfer.publishing.store import MemoryStore
from rose.transfer.source import Frame

# Number of versions whose counts are kept. Counts are small, so they outlive the chunks.
COUNTS_MAX: Final = 4096
RECEIVERS_MAX: Final = 1024
NAME_MAX: Final = 256
ELEMENT_BYTES: Final = 2

Chunks: TypeAlias = Mapping[int, bytes]  # frames by tile
# `Publisher.snapshot` and `Publisher.whole`.
MakeSnapshot: TypeAlias = Callable[[int | None, Sequence[int]], Manifest | None]
ReadWhole: TypeAlias = Callable[[int, int], Frame | None]


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """The last report of a receiver.

    Args:
        n: number of the version that the receiver tried to commit.
        is_match: whether the receiver's weights have the trainer's digest.
        digest: digest of the receiver's weights.
    """

    n: int
    is_match: bool
    digest: Digest


@dataclass(frozen=True, slots=True)
class TransferStatistics:
    """Sums over all versions since the log was made, including forgotten versions.

    Args:
        versions: published versions, not counting the version that opened the log.
        snapshots: snapshots requested with tiles.
        sent_bytes: bytes of all chunks sent.
        dense_bytes: bytes that whole weights would take at 2 bytes per element, once per receiver
            and reported version.
    """

    versions: int = 0
    snapshots: int = 0
    sent_bytes: int = 0
    dense_bytes: int = 0


@dataclass(slots=True)
class _Counts:
    """Counts of one version. They are kept for thousands of versions, unlike manifests.

    Args:
        dense_bytes: bytes of whole weights, at 2 bytes per element; 0 for the version that opened
            the log.
        answered: names of receivers that have reported the version.
    """

    dense_bytes: int
    answered: set[str] = field(default_factory=set)


class VersionLog(Shelf):
    """Stores manifests and chunks, forgets the oldest, and counts the bytes that it sends.

    It keeps the last `versions_max` versions and the merged deltas among them. Of merged deltas
    that begin earlier, it keeps the last `merged_max` of each length. The opening, which is the
    announcement passed to `open`, always stays.

    Whole tiles are not kept: the publisher reads each when it is sent.

    Any thread may call. The lock guards the counts, and is held only briefly; one thread at a time
    appends.

    Args:
        versions_max: number of versions to keep, at least 1.
        bytes_max: bytes of all chunks to keep.
        merged_max: for each length, number of merged deltas to keep that begin before the kept
            versions.
    """

    def __init__(
        self,
        *,
        versions_max: int = VERSIONS_MAX,
        bytes_max: int = BYTES_MAX,
        merged_max: int = MERGED_MAX,
    ) -> None:
        self._limits = Limits(versions_max, merged_max, bytes_max)
        self._bytes_max = bytes_max
        super().__init__(MemoryStore())
        self._appending = threading.Lock()
        self._lock = threading.Lock()
        self._counts: dict[int, _Counts] = {}  # by n, ascending
        self._make_snapshot: MakeSnapshot | None = None
        self._read_whole: ReadWhole | None = None
        self._opened: Version | None = None  # opening of the current publisher
        self._receivers: dict[str, Acknowledgement] = {}
        self._totals = TransferStatistics()
        self._is_closed = False

    # ---- the publisher's side

    def open(
        self,
        manifest: Manifest,
        make_snapshot: MakeSnapshot,
        read_whole: ReadWhole,
        shared: SharedTiles | None = None,
    ) -> None:
        """Start with an announcement of the publisher's weights, and functions for snapshots.

        Updates of other runs and incarnations are forgotten, since no receiver may follow them. An
        earlier publisher of this log can no longer publish.

        Raises:
            InvalidArgument: the manifest is not an announcement, or the log has a publisher that is
                not an earlier incarnation of the same run.
            Unavailable: the log is closed.
        """
        if not manifest.is_announcement or manifest.chunks:
            raise InvalidArgument(
                f"the manifest of version {manifest.version} must be an announcement without chunks"
            )
        with self._appending:
            opened = self._opened
            is_heir = opened is None or (
                opened.run == manifest.version.run
                and opened.incarnation < manifest.version.incarnation
            )
            if not is_heir:
                raise InvalidArgument(
                    f"version {opened} has opened the log: begin a later incarnation of its run"
                )
            self._check_newer(manifest)
            self._put(manifest, {})
            self._forget_others(manifest.version.run, manifest.version.incarnation)
            self._make_snapshot, self._read_whole = make_snapshot, read_whole
            self.shared = shared
            self._opened = manifest.version
            self._count(manifest.version.n, dense_bytes=0)

    def append(self, manifest: Manifest, chunks: Chunks) -> None:
        """Store a version; on an error the log is unchanged.

        Raises:
            InvalidArgument: the version's number is not the highest, or chunks and manifest differ.
            OutOfMemory: the version alone exceeds the log's limit.
            Unavailable: the log is closed, or has a publisher of a later incarnation.
        """
        _check_chunks(manifest, chunks)
        with self._appending:
            self._check_newer(manifest)
            if manifest.nbytes > self._bytes_max:
                raise OutOfMemory(
                    f"version {manifest.version} has {manifest.nbytes} bytes, more than the log's "
                    f"limit of {self._bytes_max}"
                )
            # Counted before any receiver can report the version.
            self._count(manifest.version.n, dense_bytes=ELEMENT_BYTES * manifest.count)
            self._put(manifest, chunks)
            with self._lock:
                self._totals = replace(self._totals, versions=self._totals.versions + 1)
            self._trim_to(self._limits)

    def append_merged(self, manifest: Manifest, chunks: Chunks) -> bool:
        """Store a merged delta over versions of this log; it adds no version.

        Returns:
            Whether the merged delta is kept: its versions are still in the log, and there is room.

        Raises:
            InvalidArgument: chunks and manifest differ.
            Unavailable: the log is closed.
        """
        _check_chunks(manifest, chunks)
        with self._appending:
            if self._is_closed:
                raise Unavailable("the log of versions is closed")
            if self.version_named(manifest.key.n) != manifest.version:
                return False
            self._put(manifest, chunks)
            self._trim_to(self._limits)
            return self.manifest(manifest.key) is not None

    def version_named(self, n: int) -> Version | None:
        """Return the version with this number, if an update to it is kept."""
        found = (one.version for one in self.manifests_after(n - 1))
        return next((one for one in found if one.n == n), None)

    def _check_newer(self, manifest: Manifest) -> None:
        if self._is_closed:
            raise Unavailable("the log of versions is closed")
        opened = self._opened
        if opened is not None and manifest.version.incarnation < opened.incarnation:
            raise Unavailable(
                f"version {manifest.version} belongs to an older incarnation than {opened}"
            )
        if manifest.version.n <= (newest := self.newest_n):
            raise InvalidArgument(
                f"version {manifest.version} must have a number above {newest}, the newest in the "
                f"log"
            )

    def _count(self, n: int, *, dense_bytes: int) -> None:
        with self._lock:
            self._counts[n] = _Counts(dense_bytes)
            if len(self._counts) > COUNTS_MAX:
                del self._counts[next(iter(self._counts))]

    def close(self) -> None:
        """Accept no more versions; kept versions can still be pulled."""
        with self._appending:
            self._is_closed = True

    # ---- the receivers' side

    def snapshot(self, n: int | None, tiles: Sequence[int]) -> Manifest | None:
        """Return a snapshot with these tiles; see `Publisher.snapshot`.

        Raises:
            Unavailable: the log has no publisher yet.
        """
        if (make := self._make_snapshot) is None:
            raise Unavailable("no version was published yet")
        manifest = make(n, tiles)
        if manifest is not None and tiles:
            with self._lock:
                self._totals = replace(self._totals, snapshots=self._totals.snapshots + 1)
        return manifest

    def chunk(self, key: UpdateKey, tile: int) -> Frame | None:
        """Return the frame of a tile, counted as sent; None if it is not kept.

        Raises:
            Unavailable: the tile is whole, and cannot be read now.
        """
        if key.is_whole:
            frame = None if self._read_whole is None else self._read_whole(key.n, tile)
        else:
            frame = self._store.get(key, tile)
        if frame is not None:
            with self._lock:
                sent_bytes = self._totals.sent_bytes + len(frame)
                self._totals = replace(self._totals, sent_bytes=sent_bytes)
        return frame

    def frames(self, key: UpdateKey) -> Chunks | None:
        """Return all frames of an update, for its publisher; None unless all are kept."""
        if (manifest := self.manifest(key)) is None:
            return None
        frames = {one.tile: self._store.get(key, one.tile) for one in manifest.chunks}
        kept = {tile: frame for tile, frame in frames.items() if frame is not None}
        return kept if len(kept) == len(frames) else None

    def report(self, receiver: str, n: int, is_match: bool, digest: Digest) -> None:  # noqa: FBT001
        """Record a receiver's report; a report on an unknown version is ignored.

        Receiver names change with processes. Beyond a limit, the receiver with the oldest report is
        dropped.
        """
        if len(receiver) > NAME_MAX:
            raise InvalidArgument(
                f"a receiver's name must have at most {NAME_MAX} characters, got {len(receiver)}"
            )
        with self._lock:
            counts = self._counts.get(n)
            if counts is None:
                return
            self._receivers.pop(receiver, None)
            self._receivers[receiver] = Acknowledgement(n, is_match, digest)
            if len(self._receivers) > RECEIVERS_MAX:
                del self._receivers[next(iter(self._receivers))]
            if receiver not in counts.answered and len(counts.answered) < RECEIVERS_MAX:
                counts.answered.add(receiver)
                dense_bytes = self._totals.dense_bytes + counts.dense_bytes
                self._totals = replace(self._totals, dense_bytes=dense_bytes)

    # ---- counters

    def receivers(self) -> dict[str, Acknowledgement]:
        """Return the last report of each receiver."""
        with self._lock:
            return dict(self._receivers)

    def statistics(self) -> TransferStatistics:
        """Return the sums over all versions."""
        with self._lock:
            return self._totals


def _check_chunks(manifest: Manifest, chunks: Chunks) -> None:
    sizes = {tile: len(frame) for tile, frame in chunks.items()}
    if sizes != {chunk.tile: chunk.nbytes for chunk in manifest.chunks}:
        raise InvalidArgument(
            f"the chunks of version {manifest.version} must have the tiles and sizes of its "
            f"manifest"
        )
