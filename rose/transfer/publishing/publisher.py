"""The publisher: turns fresh weights into a version of the log, or leaves everything as it was."""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from rose.errors import InvalidArgument, Unavailable
from rose.transfer.codec.delta import Delta, frame_digests
from rose.transfer.digests import Digest, TileDigests
from rose.transfer.manifest import UNSIGNED, Chunk, Manifest, Signing, UpdateKey
from rose.transfer.publishing.contributor import Contributor, Part
from rose.transfer.publishing.log import VersionLog
from rose.transfer.publishing.selection import Drift, total_drift
from rose.transfer.tiles import Tiles
from rose.transfer.version import Version
from rose.transfer.views import TileViews

Published: TypeAlias = Callable[[Manifest, Mapping[int, Delta]], None]
_Undone = list[dict[int, Delta]]


class Publisher:
    """Makes versions of what its contributors pack.

    One thread publishes; the log may ask for a seed from any thread. The lock guards the shadows
    and everything said of them, so a seed is of one version and no mixture.

    Args:
        contributors: who own the tiles, each tile one of them.
        tiles: how the weights are cut.
        opening: the name of what the shadows are: its n is above all that earlier incarnations
            used, and its incarnation higher than any before it.
        log: gets what is published; one publisher has it.
        signing: with the key that receivers have.
        on_published: told of each version once the log has it, with the deltas of the tiles that
            change, before they were coded for a link; must not wait. `SpanMaker.note` is one.

    Raises:
        InvalidArgument: a tile has no contributor, or two, or the name cannot be.
    """

    def __init__(
        self,
        contributors: Sequence[Contributor],
        tiles: Tiles,
        opening: Version,
        log: VersionLog,
        *,
        signing: Signing = UNSIGNED,
        on_published: Published | None = None,
    ) -> None:
        owned = sorted(tile for one in contributors for tile in one.owned)
        if owned != list(range(len(tiles))):
            raise InvalidArgument("every tile needs one contributor, and no tile has two")
        if opening.incarnation < 0 or opening.n < 0:
            raise InvalidArgument(
                f"incarnation {opening.incarnation} and first version {opening.n} must not be "
                "negative"
            )
        self._contributors = contributors
        self._owner = {tile: one for one in contributors for tile in one.owned}
        self._tiles = tiles
        self._is_sound = True  # the shadows are the newest version
        self._log = log
        self._signing = signing
        self._on_published = on_published
        self._lock = threading.Lock()
        self._version = opening
        self._drift = Drift()
        parts = {tile: one.digests[tile] for one in contributors for tile in one.owned}
        self._digests = TileDigests(parts)
        log.open(self._manifest(opening, opening, self._digests, ()), self.seed)

    @property
    def version(self) -> Version:
        """Return the newest version."""
        with self._lock:
            return self._version

    @property
    def tiles(self) -> Tiles:
        """Return how the weights are cut."""
        return self._tiles

    @property
    def drift(self) -> Drift:
        """Return how far the newest version is from the weights it was made of.

        Of the tiles of which a selection is sent; the others are what was published.
        """
        with self._lock:
            return self._drift

    def publish(self, *new: TileViews) -> Manifest:
        """Make `new` the next version.

        Args:
            new: the fresh weights of each contributor; read only.

        Raises:
            InvalidArgument: they are other weights than those to begin with.
            OutOfMemory: there is no room for it, here or in the log.
            Unavailable: the log is closed, or an earlier call was interrupted.
                After any error the version, the shadows and the log are as before. Where they may
                not be, as after an interrupt, nothing is published or seeded any more.
        """
        if len(new) != len(self._contributors):
            raise InvalidArgument(
                f"{len(new)} sets of weights are published by {len(self._contributors)}"
            )
        with self._lock:
            self._check_sound()
            parts = [Part() for _ in new]
            # Until it is known to be: an interrupt may come between a change and what notes it.
            self._is_sound = False
            try:
                for one, views, part in zip(self._contributors, new, parts, strict=True):
                    one.pack(views, part)
                manifest = self._append(parts)
                self._is_sound = True
            finally:
                if not self._is_sound:  # whatever it was that failed
                    back = [
                        one.take_back(part)
                        for one, part in zip(self._contributors, parts, strict=True)
                    ]
                    # What the log has shown stays shown: nobody gives its number to other weights.
                    self._is_sound = all(back) and self._log.newest_n <= self._version.n
            if self._on_published is not None:
                deltas = {tile: delta for part in parts for tile, delta in part.deltas.items()}
                self._on_published(manifest, deltas)
            return manifest

    def _append(self, parts: Sequence[Part]) -> Manifest:
        chunks = sorted((chunk for part in parts for chunk in part.chunks), key=_tile_of)
        after = {chunk.tile: chunk.digest for chunk in chunks}
        version = Version(self._version.run, self._version.incarnation, self._version.n + 1)
        manifest = self._signing.signed(
            Manifest(
                version=version,
                base=self._version,
                digest=self._digests.total_with(after),
                base_digest=self._digests.total,
                layout=self._tiles.layout,
                tile_count=len(self._tiles),
                count=self._tiles.count,
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
        self._drift = total_drift(part.drift for part in parts)
        return manifest

    def seed(
        self, n: int | None = None, tiles: Sequence[int] = ()
    ) -> tuple[Manifest, dict[int, bytes]] | None:
        """Return a version with some tiles whole, as deltas from zeros, and the digests of all.

        Args:
            n: the version; None for the newest. An older one is made by taking back what the log
                still has of the versions since.
            tiles: ascending, each once.

        Returns:
            The manifest, and frames by tile; None where the log has too little of it.

        Raises:
            InvalidArgument: there is no such tile.
            Unavailable: a call that published was interrupted.
        """
        if any(tile not in self._owner for tile in tiles):
            raise InvalidArgument(f"a seed of tile {max(tiles)} of {len(self._tiles)}")
        with self._lock:
            self._check_sound()
            version = self._version if n is None else self._named(n)
            past = None if version is None else self._past(version.n)
            if version is None or past is None:
                return None
            before, undone = past
            made = [one for tile in tiles for one in self._owner[tile].whole((tile,), undone)]
            digests = self._digests.copy()
            digests.update(before)
            manifest = self._manifest(version, None, digests, [chunk for chunk, _ in made])
            return manifest, {chunk.tile: frame for chunk, frame in made}

    def _named(self, n: int) -> Version | None:
        if n == self._version.n:
            return self._version
        return self._log.version_named(n)

    def _past(self, n: int) -> tuple[dict[int, Digest], _Undone] | None:
        """Return what led from a version to the newest: digests before, and deltas, last first."""
        before: dict[int, Digest] = {}
        undone: _Undone = []
        for at in range(self._version.n, n, -1):
            frames = self._log.frames(UpdateKey(at, at - 1))
            if frames is None:
                return None
            before.update({tile: frame_digests(frame)[0] for tile, frame in frames.items()})
            deltas = {tile: Delta.from_bytes(frame) for tile, frame in frames.items()}
            if any(delta.rule is not None for delta in deltas.values()):
                return None  # what went over a slow link is read from its base only
            undone.append(deltas)
        return before, undone

    def _check_sound(self) -> None:
        if not self._is_sound:
            raise Unavailable(
                "publishing was interrupted, so the shadow may be no version: begin another "
                "incarnation"
            )

    def _manifest(
        self,
        version: Version,
        base: Version | None,
        digests: TileDigests,
        chunks: Sequence[Chunk],
    ) -> Manifest:
        """Return an announcement or a seed, which say the digests of all tiles."""
        return self._signing.signed(
            Manifest(
                version=version,
                base=base,
                digest=digests.total,
                base_digest=(0, 0) if base is None else digests.total,
                layout=self._tiles.layout,
                tile_count=len(self._tiles),
                count=self._tiles.count,
                chunks=tuple(chunks),
                tile_digests=tuple(digests[tile] for tile in range(len(self._tiles))),
            )
        )


def _tile_of(chunk: Chunk) -> int:
    return chunk.tile
