"""The publisher: appends fresh weights to the log as a version, or leaves everything unchanged."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from rose.clock import BootClock
from rose.errors import InvalidArgument, Unavailable
from rose.transfer.codec.delta import Delta
from rose.transfer.codec.operations import delta_apply, digest
from rose.transfer.digests import Digest, TileDigests
from rose.transfer.manifest import TILE_MAC_BYTES, Chunk, Manifest, Version
from rose.transfer.publishing.contributor import Contributor, PackedPart
from rose.transfer.publishing.log import VersionLog
from rose.transfer.publishing.past import Past
from rose.transfer.publishing.selection import Drift
from rose.transfer.publishing.shadow_memory import ShadowMemory
from rose.transfer.signing import UNSIGNED, Signing
from rose.transfer.tiles import Tile, Tiles, TileViews

if TYPE_CHECKING:  # `remote_part` needs the extra `wire`.
    from rose.transfer.wire.remote_part import RemotePart


# Longest wait for a publish in progress, twice for each request for a whole tile, in seconds. A
# chunk server keeps a request for 8 s.
WHOLE_WAIT_S: Final = 3.0
# Part of the weights' size that the deltas since snapshots in use may take before they are merged.
_PAST_PART: Final = 10

# A contributor: in this process, or in the process of its rank.
PartOwner: TypeAlias = "Contributor | RemotePart"
OnPublished: TypeAlias = Callable[[Manifest, Mapping[int, Delta]], None]


class Publisher:
    """Makes versions from the parts that its contributors pack.

    One thread publishes; the log may request snapshots and whole tiles from any thread. `_lock` is
    held while a version is published; `_book` guards the version, its digests and its past, and is
    held only briefly. So a snapshot is a list of digests that is made at once, and publishing does
    not wait for receivers. A tile is read from the shadow when it is sent: later versions are
    undone in the copy, so that all tiles of a snapshot are of one version.

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
        memory: memory of the contributors' shadows. Receivers on this host read whole tiles from
            it, unless there is a key: a MAC is made when a tile is sent.

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
        memory: ShadowMemory | None = None,
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
        self._publishes = threading.Condition()  # guards _publishing
        self._publishing = 0  # publishes in progress or waiting
        self._book = threading.Lock()
        self._version = opening
        self._past = Past(log, opening.n, bytes_max=tiles.nbytes // _PAST_PART, clock=BootClock())
        self._drifts: list[Drift] = []  # one for each part of the newest version
        parts = {tile: one.digests[tile] for one in contributors for tile in one.owned}
        self._digests = TileDigests(parts)
        announcement = self._manifest(opening, opening, self._digests, ())
        shared = None
        if memory is not None and not signing.key:
            shared = memory.tiles(self._owner[tile].whole(tile) for tile in range(len(tiles)))
        log.open(announcement, self.snapshot, self.whole, shared)

    @property
    def version(self) -> Version:
        """Return the newest version."""
        with self._book:
            return self._version

    @property
    def digest(self) -> Digest:
        """Return the digest of the newest version."""
        with self._book:
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
        an interrupt, this object publishes nothing more and sends no more whole tiles.

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
                self._on_published(manifest, _deltas_of(parts))
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
        with self._book:
            self._digests.update(after)
            self._version = version
            self._past.add(version.n, _deltas_of(parts))
        self._drifts = [part.drift for part in parts]
        return manifest

    def snapshot(self, n: int | None, tiles: Sequence[int]) -> Manifest | None:
        """Return a snapshot: the digests of all tiles, and a chunk for each of some tiles.

        No frame is made: `whole` makes each when it is sent. Any thread may call.

        Args:
            n: number of the version; None for the newest.
            tiles: indices of the tiles, ascending, each once; may be empty.

        Returns:
            The manifest; None if that version can no longer be restored.

        Raises:
            InvalidArgument: a tile does not exist.
            Unavailable: an earlier publish was interrupted.
        """
        if any(tile not in self._owner for tile in tiles):
            raise InvalidArgument(
                f"tile indices must be from 0 to {len(self.tiles) - 1}, got {min(tiles)} to "
                f"{max(tiles)}"
            )
        with self._book:
            if not self._is_sound and not self._publishing:
                self._check_sound()
            here = self._version
            version = here if n is None or n == here.n else self._log.version_named(n)
            if version is None or replace(version, n=here.n) != here:  # of another chain
                return None
            if not self._past.reaches(version.n):
                return None
            digests = self._digests.copy()
            digests.update(self._past.digests_before(version.n))
        chunks = [_whole_chunk(self.tiles[tile], digests[tile]) for tile in tiles]
        return self._manifest(version, None, digests, chunks)

    def whole(self, n: int, tile: int) -> memoryview | None:
        """Return the frame of a whole tile: its elements in version `n`, and their MAC.

        The shadow is read while versions are published: the tile's digest tells whether the
        elements are those of the version. Any thread may call.

        Returns:
            The frame; None if that version can no longer be restored.

        Raises:
            InvalidArgument: the tile does not exist.
            Unavailable: the tile cannot be read now, or an earlier publish was interrupted.
        """
        if tile not in self._owner:
            raise InvalidArgument(f"tile {tile} must be below {len(self.tiles)}")
        at = self.tiles[tile]
        frame = np.empty(at.nbytes + TILE_MAC_BYTES, np.uint8)
        elements = frame[: at.nbytes].view(f"u{at.width // 8}")
        # The session of a part in another process allows one call at a time.
        is_read = isinstance(self._owner[tile], Contributor) and self._read(n, tile, elements)
        if is_read is False:
            with self._publishes:  # a publish in progress has priority
                self._publishes.wait_for(lambda: self._publishing == 0, WHOLE_WAIT_S)
            if not self._lock.acquire(timeout=WHOLE_WAIT_S):
                raise Unavailable("a version is being published: request the tile again")
            try:
                self._check_sound()
                is_read = self._read(n, tile, elements)
            finally:
                self._lock.release()
        if is_read is None:
            return None
        if not is_read:
            raise Unavailable(f"tile {tile} of the shadow has changed by itself")
        frame[at.nbytes :] = np.frombuffer(self._signing.tile_mac(elements.data), np.uint8)
        return frame.data

    def _read(self, n: int, tile: int, elements: npt.NDArray[Any]) -> bool | None:
        """Copy a tile of version `n`; return whether the copy is right, None if `n` is gone."""
        with self._book:
            if not self._past.reaches(n):
                return None
            undone = self._past.deltas_since(n, tile)
            digest_then = undone[-1].base_digest if undone else self._digests[tile]
        elements[:] = self._owner[tile].whole(tile)
        for delta in undone:
            delta_apply(elements, delta, undo=True)
        return digest(elements) == digest_then

    @contextmanager
    def _first(self) -> Iterator[None]:
        """Give this thread priority over readers of whole tiles."""
        with self._publishes:
            self._publishing += 1
        try:
            yield
        finally:
            with self._publishes:
                self._publishing -= 1
                self._publishes.notify_all()

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


def _deltas_of(parts: Sequence[PackedPart]) -> dict[int, Delta]:
    return {tile: delta for part in parts for tile, delta in part.deltas.items()}


def _whole_chunk(tile: Tile, digest_then: Digest) -> Chunk:
    return Chunk(tile.index, tile.nbytes + TILE_MAC_BYTES, tile.count, b"", digest_then)
