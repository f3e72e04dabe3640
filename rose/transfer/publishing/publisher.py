"""The publisher: appends fresh weights to the log as a version, or leaves everything unchanged."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Final, TypeAlias

from rose.errors import InvalidArgument, Unavailable
from rose.transfer.codec.delta import Delta, frame_digests
from rose.transfer.digests import Digest, TileDigests
from rose.transfer.manifest import Chunk, Manifest, UpdateKey, Version
from rose.transfer.publishing.contributor import Contributor, PackedPart
from rose.transfer.publishing.log import VersionLog
from rose.transfer.publishing.selection import Drift
from rose.transfer.signing import UNSIGNED, Signing
from rose.transfer.tiles import Tiles, TileViews

if TYPE_CHECKING:  # `remote_part` needs the extra `wire`.
    from rose.transfer.wire.remote_part import RemotePart


class Past:
    """The versions since a given version, each read from the log once, so that they can be undone.

    One thread uses it, while nobody publishes.

    Args:
        log: log of the versions.
        n: number of the version to return to.
    """

    def __init__(self, log: VersionLog, n: int) -> None:
        self._log = log
        self._newest_n = n
        self.digests: dict[int, Digest] = {}  # at version n, for the tiles that changed since then
        self._since: list[dict[int, Delta]] = []  # ascending

    def extend(self, newest_n: int) -> bool:
        """Read further versions; return False if one of them is missing or cannot be undone."""
        for n in range(self._newest_n + 1, newest_n + 1):
            frames = self._log.frames(UpdateKey(n, n - 1))
            if frames is None:
                return False
            deltas = {tile: Delta.from_bytes(frame) for tile, frame in frames.items()}
            if any(delta.rule is not None for delta in deltas.values()):
                return False  # a STRAT delta can only be read from its base
            for tile, frame in frames.items():
                self.digests.setdefault(tile, frame_digests(frame)[0])
            self._since.append(deltas)
            self._newest_n = n
        return True

    def undone(self) -> list[dict[int, Delta]]:
        """Return the deltas to undo, the latest version first."""
        return self._since[::-1]


# Number of a snapshot's tiles that are made under one hold of the lock, and the longest wait of a
# snapshot for a publish in progress.
SNAPSHOT_TILES: Final = 16
SNAPSHOT_WAIT_S: Final = 60.0

# A contributor: in this process, or in the process of its rank.
PartOwner: TypeAlias = "Contributor | RemotePart"
OnPublished: TypeAlias = Callable[[Manifest, Mapping[int, Delta]], None]


class Publisher:
    """Makes versions from the parts that its contributors pack.

    One thread publishes; the log may request a snapshot from any thread. The lock guards the
    shadows and their metadata. A snapshot holds the lock for a few tiles at a time, so publishing
    does not wait for the whole snapshot. Versions published in between are undone in the tiles that
    follow, so that all tiles of a snapshot are of one version.

    Args:
        contributors: owners of the tiles, in this process or in other ranks' processes; each tile
            has exactly one owner.
        tiles: all tiles of the weights.
        opening: version of the shadows at the start. Its `n` must be above all numbers of earlier
            incarnations, and its `incarnation` above all earlier incarnations.
        log: log to append to; it must have no other publisher.
        signing: key shared with the receivers.
        on_published: called after a version is in the log, with its manifest and the deltas of the
            changed tiles before wire encoding; must not block. `MergerThread.note` is such a
            function.

    Raises:
        InvalidArgument: a tile has no contributor or two, or the opening is invalid.
    """

    def __init__(
        self,
        contributors: Sequence[PartOwner],
        tiles: Tiles,
        opening: Version,
        log: VersionLog,
        *,
        signing: Signing = UNSIGNED,
        on_published: OnPublished | None = None,
    ) -> None:
        owned = sorted(tile for one in contributors for tile in one.owned)
        if owned != list(range(len(tiles))):
            raise InvalidArgument("every tile must have exactly one contributor")
        if opening.incarnation < 0 or opening.n < 0:
            raise InvalidArgument(
                f"incarnation {opening.incarnation} and first version {opening.n} must not be "
                "negative"
            )
        self._contributors = contributors
        self._owner = {tile: one for one in contributors for tile in one.owned}
        self.tiles = tiles
        self._is_sound = True  # the shadows equal the newest version
        self._log = log
        self._signing = signing
        self._on_published = on_published
        self._lock = threading.Lock()
        self._wanted = threading.Condition()  # guards _publishing
        self._publishing = 0  # publishes in progress or waiting
        self._version = opening
        self._drifts: list[Drift] = []  # one for each part of the newest version
        parts = {tile: one.digests[tile] for one in contributors for tile in one.owned}
        self._digests = TileDigests(parts)
        log.open(self._manifest(opening, opening, self._digests, ()), self.snapshot)

    @property
    def version(self) -> Version:
        """Return the newest version."""
        with self._lock:
            return self._version

    @property
    def digest(self) -> Digest:
        """Return the digest of the newest version."""
        with self._lock:
            return self._digests.total

    @property
    def is_sound(self) -> bool:
        """True if anything can be published; if not, begin another incarnation."""
        with self._lock:
            return self._is_sound

    @property
    def drift(self) -> Drift:
        """Return the distance between the newest version and the weights that it was made from.

        Only tiles with a selection count; all other tiles are sent exactly.
        """
        with self._lock:
            return sum(self._drifts, Drift())

    def publish(self, *new: TileViews) -> Manifest:
        """Make `new` the next version.

        After any error, version, shadows and log are unchanged. If that cannot be ensured, as after
        an interrupt, this object publishes nothing more and makes no more snapshots.

        Args:
            new: the fresh weights for each contributor, in order; for a contributor in another
                process, the name of the weights in that process. Only read.

        Raises:
            InvalidArgument: the weights do not match the tiles.
            OutOfMemory: no memory is left, here or in the log.
            Unavailable: the log is closed, or an earlier call was interrupted.
        """
        if len(new) != len(self._contributors):
            raise InvalidArgument(f"expected {len(self._contributors)} weight sets, got {len(new)}")
        with self._first(), self._lock:
            self._check_sound()
            parts = [PackedPart() for _ in new]
            # False until proven: an interrupt may come between a change and its record.
            self._is_sound = False
            try:
                for one, views in zip(self._contributors, new, strict=True):
                    one.begin(views)
                for one, views, part in zip(self._contributors, new, parts, strict=True):
                    one.pack(views, part)
                manifest = self._append(parts)
                self._is_sound = True
            finally:
                if not self._is_sound:  # after any failure
                    # A version in the log stays: its number must not be given to other weights.
                    self._is_sound = self._taken_back(parts) and (
                        self._log.newest_n <= self._version.n
                    )
            if self._on_published is not None:
                deltas = {tile: delta for part in parts for tile, delta in part.deltas.items()}
                self._on_published(manifest, deltas)
            return manifest

    def _taken_back(self, parts: Sequence[PackedPart]) -> bool:
        """Restore all shadows; return whether that succeeded."""
        for one, part in zip(self._contributors, parts, strict=True):
            one.give_up(part)
        back = [one.take_back(part) for one, part in zip(self._contributors, parts, strict=True)]
        return all(back)

    def _append(self, parts: Sequence[PackedPart]) -> Manifest:
        chunks = sorted((chunk for part in parts for chunk in part.chunks), key=attrgetter("tile"))
        after = {chunk.tile: chunk.digest for chunk in chunks}
        version = Version(self._version.run, self._version.incarnation, self._version.n + 1)
        manifest = self._signing.signed(
            Manifest(
                version=version,
                base=self._version,
                digest=self._digests.total_with(after),
                base_digest=self._digests.total,
                layout=self.tiles.layout,
                tile_count=len(self.tiles),
                count=self.tiles.count,
                chunks=tuple(chunks),
            )
        )
        self._log.append(
            manifest, {tile: frame for part in parts for tile, frame in part.frames.items()}
        )
        for one, part in zip(self._contributors, parts, strict=True):
            one.keep(part)
        self._digests.update(after)
        self._version = version
        self._drifts = [part.drift for part in parts]
        return manifest

    def snapshot(
        self, n: int | None, tiles: Sequence[int]
    ) -> tuple[Manifest, dict[int, bytes]] | None:
        """Return a snapshot with some tiles, as deltas from zeros, and the digests of all tiles.

        Args:
            n: number of the version; None for the newest. To make an older version, all versions
                since are undone, so the log must have them.
            tiles: indices of the tiles, ascending, each once; may be empty.

        Returns:
            The manifest, and frames by tile; None if the log lacks a version since then, or a
            later version cannot be undone.

        Raises:
            InvalidArgument: a tile does not exist.
            Unavailable: an earlier publish was interrupted.
        """
        if any(tile not in self._owner for tile in tiles):
            raise InvalidArgument(
                f"tile indices must be from 0 to {len(self.tiles) - 1}, got {min(tiles)} to "
                f"{max(tiles)}"
            )
        with self._lock:
            self._check_sound()
            here = self._version
            version = here if n is None or n == here.n else self._log.version_named(n)
            if version is None or replace(version, n=here.n) != here:  # of another chain
                return None
            past = Past(self._log, version.n)
            if not past.extend(here.n):
                return None
            digests = self._digests.copy()
            digests.update(past.digests)
        made: list[tuple[Chunk, bytes]] = []
        for at in range(0, len(tiles), SNAPSHOT_TILES):
            self._let_publish()
            with self._lock:
                some = self._whole(tiles[at : at + SNAPSHOT_TILES], past)
            if some is None:
                return self._snapshot_at_once(tiles) if n is None else None
            made += some
        manifest = self._manifest(version, None, digests, [chunk for chunk, _ in made])
        return manifest, {chunk.tile: frame for chunk, frame in made}

    def _snapshot_at_once(self, tiles: Sequence[int]) -> tuple[Manifest, dict[int, bytes]]:
        """Make a snapshot under one hold of the lock, because versions cannot be undone."""
        with self._lock:
            self._check_sound()
            made = [one for tile in tiles for one in self._owner[tile].whole((tile,))]
            manifest = self._manifest(
                self._version, None, self._digests, [chunk for chunk, _ in made]
            )
        return manifest, {chunk.tile: frame for chunk, frame in made}

    def _whole(self, tiles: Sequence[int], past: Past) -> list[tuple[Chunk, bytes]] | None:
        """Return tiles of a past version; None if a later version is missing or cannot be undone.

        Raises:
            Unavailable: an earlier publish was interrupted.
        """
        self._check_sound()
        if not past.extend(self._version.n):
            return None
        undone = past.undone()
        return [one for tile in tiles for one in self._owner[tile].whole((tile,), undone)]

    def _let_publish(self) -> None:
        """Wait for a publish in progress: it has priority over snapshots."""
        with self._wanted:
            self._wanted.wait_for(lambda: self._publishing == 0, SNAPSHOT_WAIT_S)

    @contextmanager
    def _first(self) -> Iterator[None]:
        """Give this thread priority over snapshots in progress."""
        with self._wanted:
            self._publishing += 1
        try:
            yield
        finally:
            with self._wanted:
                self._publishing -= 1
                self._wanted.notify_all()

    def _check_sound(self) -> None:
        if not self._is_sound:
            raise Unavailable(
                "publishing was interrupted, so the shadow may match no version: begin another "
                "incarnation"
            )

    def _manifest(
        self,
        version: Version,
        base: Version | None,
        digests: TileDigests,
        chunks: Sequence[Chunk],
    ) -> Manifest:
        """Return an announcement or a snapshot, which carry the digests of all tiles."""
        return self._signing.signed(
            Manifest(
                version=version,
                base=base,
                digest=digests.total,
                base_digest=(0, 0) if base is None else digests.total,
                layout=self.tiles.layout,
                tile_count=len(self.tiles),
                count=self.tiles.count,
                chunks=tuple(chunks),
                tile_digests=tuple(digests[tile] for tile in range(len(self.tiles))),
            )
        )
