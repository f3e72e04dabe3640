"""The publisher: turns fresh weights into a version of the log, or leaves everything as it was."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeAlias

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

if TYPE_CHECKING:  # It needs the extra `wire`.
    from rose.transfer.wire.remote_part import RemotePart


class Past:
    """The single versions since one, read from the log once each, so that they can be undone.

    One thread uses it, and nobody publishes meanwhile.

    Args:
        log: that has them.
        n: of the version to go back to.
    """

    def __init__(self, log: VersionLog, n: int) -> None:
        self._log = log
        self._newest_n = n
        self.digests: dict[int, Digest] = {}  # before, of the tiles that have changed since
        self._since: list[dict[int, Delta]] = []  # ascending

    def extend(self, newest_n: int) -> bool:
        """Read what came since; False where the log has too little, or none that can be undone."""
        for n in range(self._newest_n + 1, newest_n + 1):
            frames = self._log.frames(UpdateKey(n, n - 1))
            if frames is None:
                return False
            deltas = {tile: Delta.from_bytes(frame) for tile, frame in frames.items()}
            if any(delta.rule is not None for delta in deltas.values()):
                return False  # what went over a slow link is read from its base only
            for tile, frame in frames.items():
                self.digests.setdefault(tile, frame_digests(frame)[0])
            self._since.append(deltas)
            self._newest_n = n
        return True

    def undone(self) -> list[dict[int, Delta]]:
        """Return what leads back, the last version first."""
        return self._since[::-1]


# Tiles of a seed that are made at a time, and how long it waits for a version that is made.
SEED_TILES: Final = 16
SEED_WAIT_S: Final = 60.0

# A rank's part: here, or in the process of that rank.
PartOwner: TypeAlias = "Contributor | RemotePart"
Published: TypeAlias = Callable[[Manifest, Mapping[int, Delta]], None]


class Publisher:
    """Makes versions of what its contributors pack.

    One thread publishes; the log may ask for a seed from any thread. The lock guards the shadows
    and everything said of them. A seed takes it for a few tiles at a time, so that no version waits
    for one: what was published meanwhile is undone in its tiles, and it is of one version still.

    Args:
        contributors: who own the tiles, each tile one of them: here, or in other ranks' processes.
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
        contributors: Sequence[PartOwner],
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
        self._wanted = threading.Condition()  # guards the next, and is held over nothing that waits
        self._publishing = 0  # calls that make a version, or wait to
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
    def is_sound(self) -> bool:
        """Whether anything can be published: if not, another incarnation begins."""
        with self._lock:
            return self._is_sound

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
            new: the fresh weights of each contributor, or what names them there; read only.

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
        with self._first(), self._lock:
            self._check_sound()
            parts = [Part() for _ in new]
            # Until it is known to be: an interrupt may come between a change and what notes it.
            self._is_sound = False
            try:
                for one, views in zip(self._contributors, new, strict=True):
                    one.begin(views)
                for one, views, part in zip(self._contributors, new, parts, strict=True):
                    one.pack(views, part)
                manifest = self._append(parts)
                self._is_sound = True
            finally:
                if not self._is_sound:  # whatever it was that failed
                    # What the log has shown stays shown: nobody gives its number to other weights.
                    self._is_sound = self._taken_back(parts) and (
                        self._log.newest_n <= self._version.n
                    )
            if self._on_published is not None:
                deltas = {tile: delta for part in parts for tile, delta in part.deltas.items()}
                self._on_published(manifest, deltas)
            return manifest

    def _taken_back(self, parts: Sequence[Part]) -> bool:
        """Let all shadows be what they were; return whether they are."""
        for one, part in zip(self._contributors, parts, strict=True):
            one.give_up(part)
        back = [one.take_back(part) for one, part in zip(self._contributors, parts, strict=True)]
        return all(back)

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

    def seed(self, n: int | None, tiles: Sequence[int]) -> tuple[Manifest, dict[int, bytes]] | None:
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
            past = None if version is None else self._past(version)
            if version is None or past is None or not past.extend(self._version.n):
                return None
            digests = self._digests.copy()
            digests.update(past.digests)
        made: list[tuple[Chunk, bytes]] = []
        for at in range(0, len(tiles), SEED_TILES):
            self._let_publish()
            with self._lock:
                some = self._whole(tiles[at : at + SEED_TILES], past)
            if some is None:
                return self._seed_at_once(tiles) if n is None else None
            made += some
        manifest = self._manifest(version, None, digests, [chunk for chunk, _ in made])
        return manifest, {chunk.tile: frame for chunk, frame in made}

    def _seed_at_once(self, tiles: Sequence[int]) -> tuple[Manifest, dict[int, bytes]]:
        """Return the newest version while nobody publishes: for a link whose deltas are no undo."""
        with self._lock:
            self._check_sound()
            made = [one for tile in tiles for one in self._owner[tile].whole((tile,))]
            manifest = self._manifest(
                self._version, None, self._digests, [chunk for chunk, _ in made]
            )
        return manifest, {chunk.tile: frame for chunk, frame in made}

    def _whole(self, tiles: Sequence[int], past: Past) -> list[tuple[Chunk, bytes]] | None:
        """Return tiles as they were, though versions came since; None where that is too long ago.

        Raises:
            Unavailable: a call that published was interrupted.
        """
        self._check_sound()
        if not past.extend(self._version.n):
            return None
        undone = past.undone()
        return [one for tile in tiles for one in self._owner[tile].whole((tile,), undone)]

    def _let_publish(self) -> None:
        """Wait while a version is made: whoever wants whole tiles comes after it."""
        with self._wanted:
            self._wanted.wait_for(lambda: self._publishing == 0, SEED_WAIT_S)

    @contextmanager
    def _first(self) -> Iterator[None]:
        """Let seeds that are under way wait, from now on."""
        with self._wanted:
            self._publishing += 1
        try:
            yield
        finally:
            with self._wanted:
                self._publishing -= 1
                self._wanted.notify_all()

    def _named(self, n: int) -> Version | None:
        if n == self._version.n:
            return self._version
        return self._log.version_named(n)

    def _past(self, version: Version) -> Past | None:
        same = (version.run, version.incarnation) == (self._version.run, self._version.incarnation)
        return Past(self._log, version.n) if same else None

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
