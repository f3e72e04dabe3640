"""The log of versions: what publishers hand in and receivers pull, for as long as it is kept."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from rose.errors import InvalidArgument, OutOfMemory, Unavailable
from rose.transfer.digests import Digest
from rose.transfer.manifest import Manifest, UpdateKey
from rose.transfer.statistics import ELEMENT_BYTES, TransferStatistics, VersionStatistics
from rose.units import GIB

NO_VERSION: Final = -1
VERSIONS_MAX: Final = 64
BYTES_MAX: Final = 4 * GIB
# Counts are small and outlive the chunks, but not without end.
COUNTS_MAX: Final = 4096
RECEIVERS_MAX: Final = 1024
NAME_MAX: Final = 256

Chunks: TypeAlias = Mapping[int, bytes]  # frames by tile
# Makes a version, None for the newest, with these tiles whole; None where it cannot any more.
SeedMaker: TypeAlias = Callable[[int | None, Sequence[int]], tuple[Manifest, Chunks] | None]


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """What a receiver said last.

    Args:
        n: the version it tried.
        is_match: whether its weights have the digest of the trainer.
        digest: of its weights.
    """

    n: int
    is_match: bool
    digest: Digest


@dataclass(slots=True)
class _Counts:
    """What is counted for one version; `is_opening`: it is what the log began with."""

    manifest: Manifest
    is_opening: bool
    sent_bytes: int = 0
    answers: dict[str, bool] = field(default_factory=dict)

    def statistics(self) -> VersionStatistics:
        manifest = self.manifest
        return VersionStatistics(
            n=manifest.version.n,
            count=manifest.count,
            changed=manifest.changed,
            packed_bytes=manifest.nbytes,
            sent_bytes=self.sent_bytes,
            receivers=len(self.answers),
            matched=sum(self.answers.values()),
        )


class VersionLog:
    """Keeps manifests and chunks, forgets the oldest, and counts what it hands out.

    Any thread may call; the lock guards everything here and is held over nothing that takes long.

    Args:
        versions_max: versions kept, at least 1.
        bytes_max: of all chunks kept, the seed's included.
    """

    def __init__(self, *, versions_max: int = VERSIONS_MAX, bytes_max: int = BYTES_MAX) -> None:
        if versions_max < 1 or bytes_max < 1:
            raise InvalidArgument(
                f"a log of {versions_max} versions and {bytes_max} bytes keeps nothing"
            )
        self._versions_max = versions_max
        self._bytes_max = bytes_max
        self._changed = threading.Condition()
        self._manifests: dict[UpdateKey, Manifest] = {}  # ascending, as are the next two
        self._chunks: dict[UpdateKey, Chunks] = {}
        self._counts: dict[int, _Counts] = {}  # by n
        # Frames of one version that were made whole, by tile.
        self._seed_n = NO_VERSION
        self._seed: dict[int, bytes] = {}
        self._opening: Manifest | None = None
        self._make_seed: SeedMaker | None = None
        self._receivers: dict[str, Acknowledgement] = {}
        self._totals = TransferStatistics()
        self._is_closed = False

    # ---- the publisher's side

    def open(self, manifest: Manifest, make_seed: SeedMaker) -> None:
        """Begin with an announcement of what the publisher has, and how to make a seed of it.

        Raises:
            InvalidArgument: the log has an opening already, or this is none.
        """
        if not manifest.is_announcement or manifest.chunks:
            raise InvalidArgument(f"{manifest.version} is no announcement")
        with self._changed:
            if self._make_seed is not None:
                raise InvalidArgument("this log has a publisher: make a log for each")
            self._make_seed = make_seed
            self._opening = manifest
            self._append(manifest, {}, is_opening=True)

    def append(self, manifest: Manifest, chunks: Chunks) -> None:
        """Keep a version; on an error the log is as before.

        Raises:
            InvalidArgument: its number is not above all before, or chunks and manifest differ.
            OutOfMemory: it alone is more than the log may keep.
            Unavailable: the log is closed.
        """
        _check_chunks(manifest, chunks)
        with self._changed:
            if self._is_closed:
                raise Unavailable("the log of versions is closed")
            newest = self._newest()
            if manifest.version.n <= newest:
                raise InvalidArgument(f"version {manifest.version} is not above {newest}")
            if manifest.nbytes > self._bytes_max:
                raise OutOfMemory(
                    f"version {manifest.version} has {manifest.nbytes} bytes, and the log keeps "
                    f"{self._bytes_max}"
                )
            self._append(manifest, chunks, is_opening=False)
            self._totals = replace(self._totals, versions=self._totals.versions + 1)

    def _append(self, manifest: Manifest, chunks: Chunks, *, is_opening: bool) -> None:
        key = manifest.key
        self._manifests[key], self._chunks[key] = manifest, chunks
        self._counts[key.n] = _Counts(manifest, is_opening)
        if len(self._manifests) > self._versions_max:
            del self._manifests[next(iter(self._manifests))]
        if len(self._counts) > COUNTS_MAX:
            del self._counts[next(iter(self._counts))]
        self._forget_chunks()
        self._changed.notify_all()

    def _forget_chunks(self) -> None:
        """Keep to the limits: whole tiles go first, they can be made again; then the oldest."""
        if self._is_over():
            self._seed, self._seed_n = {}, NO_VERSION
        while self._is_over():
            del self._chunks[next(iter(self._chunks))]

    def _is_over(self) -> bool:
        kept = sum(len(frame) for chunks in self._chunks.values() for frame in chunks.values())
        kept += sum(map(len, self._seed.values()))
        return len(self._chunks) > self._versions_max or kept > self._bytes_max

    def close(self) -> None:
        """Take no more versions; what is kept can be pulled on."""
        with self._changed:
            self._is_closed = True

    # ---- the receivers' side

    def manifests_after(self, n: int) -> list[Manifest]:
        """Return what is kept of the versions above `n`, the oldest first.

        Whoever asks for all hears of the opening too, however old: it may hold just that.
        """
        with self._changed:
            kept = [one for key, one in self._manifests.items() if key.n > n]
            is_there = self._opening is None or self._opening.key in self._manifests
            return kept if is_there or n >= 0 or self._opening is None else [self._opening, *kept]

    def wait_after(
        self, n: int, timeout_s: float, *, is_over: Callable[[], bool] = lambda: False
    ) -> list[Manifest]:
        """Wait for a version above `n`; nothing comes back when there was none in time.

        Args:
            n: of the newest version that is known; -1 for none.
            timeout_s: how long to wait.
            is_over: asked when `wake` is called: whether to wait no longer.
        """
        with self._changed:
            self._changed.wait_for(lambda: is_over() or self._newest() > n, timeout_s)
            return self.manifests_after(n)

    def wake(self) -> None:
        """Let whoever waits look whether the wait is over."""
        with self._changed:
            self._changed.notify_all()

    def seed(self, n: int | None, tiles: Sequence[int]) -> Manifest | None:
        """Return a seed with these tiles; its frames are kept until there is no room.

        The thread that asks makes it, so no publisher waits for a receiver to want one.

        Args:
            n: the version; None for the newest.
            tiles: ascending, each once.

        Returns:
            None where that version cannot be made any more.

        Raises:
            OutOfMemory: the seed is more than the log may keep.
            Unavailable: the log has no publisher yet.
        """
        with self._changed:
            make = self._make_seed
        if make is None:
            raise Unavailable("no version was published yet")
        made = make(n, tiles)
        if made is None:
            return None
        self._keep_seed(*made)
        return made[0]

    def _keep_seed(self, manifest: Manifest, chunks: Chunks) -> None:
        _check_chunks(manifest, chunks)
        if manifest.nbytes > self._bytes_max:
            raise OutOfMemory(f"a seed of {manifest.nbytes} bytes: the log keeps {self._bytes_max}")
        if not chunks:
            return
        with self._changed:
            if manifest.version.n != self._seed_n:
                self._seed, self._seed_n = {}, manifest.version.n
            self._seed.update(chunks)
            self._totals = replace(self._totals, seeds=self._totals.seeds + 1)
            if self._is_over():  # of the others; this one was asked for now
                self._seed = dict(chunks)
            while self._is_over() and self._chunks:
                del self._chunks[next(iter(self._chunks))]

    def chunk(self, key: UpdateKey, tile: int) -> bytes | None:
        """Return the frame of a tile, or None when it is not kept; it counts as sent."""
        with self._changed:
            if key.is_whole:
                frame = self._seed.get(tile) if key.n == self._seed_n else None
            else:
                frame = self._chunks.get(key, {}).get(tile)
            if frame is not None:
                self._count_sent(key.n, len(frame))
            return frame

    def frames(self, key: UpdateKey) -> Chunks | None:
        """Return all frames of an update, for its publisher; None when they are not kept."""
        with self._changed:
            return self._chunks.get(key)

    def _count_sent(self, n: int, nbytes: int) -> None:
        self._totals = replace(self._totals, sent_bytes=self._totals.sent_bytes + nbytes)
        if (counts := self._counts.get(n)) is not None:
            counts.sent_bytes += nbytes

    def acknowledge(self, receiver: str, n: int, *, is_match: bool, digest: Digest) -> None:
        """Take a receiver's answer; one for a version that is unknown says nothing."""
        if len(receiver) > NAME_MAX:
            raise InvalidArgument(f"a receiver's name has at most {NAME_MAX} characters")
        with self._changed:
            counts = self._counts.get(n)
            if counts is None:
                return
            if receiver not in self._receivers and len(self._receivers) >= RECEIVERS_MAX:
                raise InvalidArgument(f"there are {RECEIVERS_MAX} receivers already")
            self._receivers[receiver] = Acknowledgement(n, is_match, digest)
            is_first = receiver not in counts.answers
            was_match = counts.answers.get(receiver, False)
            counts.answers[receiver] = is_match
            if not counts.is_opening:
                totals = self._totals
                dense = ELEMENT_BYTES * counts.manifest.count
                self._totals = replace(
                    totals,
                    answers=totals.answers + is_first,
                    dense_bytes=totals.dense_bytes + dense * is_first,
                    matched=totals.matched + is_match - was_match,
                )

    # ---- what it counted

    def _newest(self) -> int:
        return next(reversed(self._manifests)).n if self._manifests else NO_VERSION

    def receivers(self) -> dict[str, Acknowledgement]:
        """Return what each receiver said last."""
        with self._changed:
            return dict(self._receivers)

    def versions(self) -> list[VersionStatistics]:
        """Return the figures of the latest versions, the oldest first; the opening is none."""
        with self._changed:
            return [one.statistics() for one in self._counts.values() if not one.is_opening]

    def statistics(self) -> TransferStatistics:
        """Return the sums over all versions there were."""
        with self._changed:
            return self._totals


def _check_chunks(manifest: Manifest, chunks: Chunks) -> None:
    sizes = {tile: len(frame) for tile, frame in chunks.items()}
    if sizes != {chunk.tile: chunk.nbytes for chunk in manifest.chunks}:
        raise InvalidArgument(f"the chunks of {manifest.version} are not those of its manifest")
