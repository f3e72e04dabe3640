"""The commit: turns the weights into a staged version tile by tile, or restores them.

A commit that succeeds goes CHECKING -> APPLYING -> COMMITTED: the weights have the trainer's
digest. If the base differs, CHECKING -> ROLLED_BACK, and nothing was touched. After a later fault,
APPLYING -> UNDOING -> ROLLED_BACK: the original bits are restored exactly and identified by their
digests, even if they were not the expected base. If the undo fails too, UNDOING -> QUARANTINED:
nobody may use the weights. `take_back` undoes a finished commit, COMMITTED -> UNDOING, as when
another rank of the engine could not commit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Protocol

from rose.errors import CorruptData, InternalError, RoseError, check
from rose.transfer.codec.delta import Delta
from rose.transfer.codec.operations import digest
from rose.transfer.codec.strat import host_row, strat_unpack
from rose.transfer.codec.tensor import bits_of
from rose.transfer.digests import Digest, TileDigests
from rose.transfer.manifest import StagedVersion, Version


class Target(Protocol):
    """Live weights, accessed by tile. One thread changes them."""

    def apply(self, tile: int, delta: Delta, *, undo: bool) -> None:
        """Apply or undo `delta` on one tile; on an error the tile is unchanged."""
        ...

    def write(self, tile: int, elements: Any) -> None:
        """Overwrite one tile with a row of elements on the host."""
        ...

    def digest(self, tile: int) -> Digest:
        """Return the digest of the tile, read from memory."""
        ...

    def bits(self, tile: int) -> Any:
        """Return a tile for the codec; the caller reads it at once and does not write it."""
        ...


class CommitState(Enum):
    """State of a commit; the last three are final."""

    CHECKING = "the base is compared; nothing was changed"
    APPLYING = "some tiles are changed"
    UNDOING = "tiles are being restored"
    COMMITTED = "the weights are the new version"
    ROLLED_BACK = "the weights are the base"
    QUARANTINED = "the weights match no known version"


_MOVES: Final = frozenset(
    {
        (CommitState.CHECKING, CommitState.APPLYING),
        (CommitState.CHECKING, CommitState.ROLLED_BACK),
        (CommitState.APPLYING, CommitState.COMMITTED),
        (CommitState.APPLYING, CommitState.UNDOING),
        (CommitState.COMMITTED, CommitState.UNDOING),
        (CommitState.UNDOING, CommitState.ROLLED_BACK),
        (CommitState.UNDOING, CommitState.QUARANTINED),
    }
)
_FINAL: Final = frozenset({CommitState.COMMITTED, CommitState.ROLLED_BACK, CommitState.QUARANTINED})


@dataclass(frozen=True, slots=True)
class CommitOutcome:
    """Result of a commit.

    Args:
        version: version to commit.
        state: final state.
        digest: last known digest of the weights; the base's digest if nothing was committed.
        is_abandoned: whether the commit was cancelled; then the version is not at fault.
        reason: why the commit failed, one sentence; None if it succeeded.
        digests: digests of the tiles, as a copy; None if unknown.
    """

    version: Version
    state: CommitState
    digest: Digest
    is_abandoned: bool = False
    reason: str | None = None
    digests: TileDigests | None = None


class Commit:
    """One attempt to turn the weights into a staged version, in slices of at most one tile.

    Between its own steps, an engine calls `step` until `step` returns False. The engine may pause
    between calls, but nobody may use the weights before the commit is over. An error raised by
    another library passes through `step`; after such an error, `abandon` is safe.

    Args:
        staged: version to apply.
        target: weights to change.
        base_digest: expected digest of the weights. A snapshot fits any base, and rolls back to the
            actual base.
        digests: digests of the target's tiles from an earlier commit, so that only changed tiles
            are read; without them all tiles are read first. Updated on success. Not used for a
            snapshot: if it has tiles to write, all tiles are read first; if it has none, its own
            digests are those of the target, and the commit only names the version.
        subscribed: tiles of the target, ascending; None for all.
    """

    def __init__(
        self,
        staged: StagedVersion,
        target: Target,
        base_digest: Digest,
        *,
        digests: TileDigests | None = None,
        subscribed: Sequence[int] | None = None,
    ) -> None:
        manifest = staged.manifest
        self.staged = staged
        self._target = target
        self._base_digest = base_digest
        self._tiles = range(manifest.tile_count) if subscribed is None else subscribed
        self._after = {chunk.tile: chunk.digest for chunk in manifest.chunks}
        self._kept = digests
        if manifest.is_snapshot:
            # The snapshot may have been requested because the other digests are wrong.
            digests = None if staged.whole else staged.digests
        self._digests = digests
        self._read: dict[int, Digest] = {}
        self._next = 0
        self._fresh: dict[int, Digest] = {}
        self._before: dict[int, Digest] = {}  # digests of the changed tiles before the commit
        self._changes = staged.tiles
        # Tiles to undo, each with its delta, with the elements before a snapshot's, or with None if
        # the target failed on the tile.
        self._touched: list[tuple[int, Any]] = []
        self._is_restored = True
        self._is_abandoned = False
        self._reason: str | None = None
        self._state = CommitState.CHECKING

    @property
    def state(self) -> CommitState:
        """Return the current state."""
        return self._state

    @property
    def is_over(self) -> bool:
        """True if `step` has nothing left to do."""
        return self._state in _FINAL

    @property
    def digests(self) -> TileDigests | None:
        """Return the digests of the tiles for the next commit; None if unknown."""
        if self._state is CommitState.QUARANTINED:
            return None
        return self._kept if self._digests is None else self._digests

    @property
    def outcome(self) -> CommitOutcome:
        """Return the result of a finished commit."""
        check(self.is_over, f"the commit of {self.staged.manifest.version} is not over")
        return CommitOutcome(
            version=self.staged.manifest.version,
            state=self._state,
            digest=self._base(),
            is_abandoned=self._is_abandoned,
            reason=self._reason,
            digests=None if self.digests is None else self.digests.copy(),
        )

    def step(self) -> bool:
        """Do one slice of work; return whether more is left."""
        match self._state:
            case CommitState.CHECKING:
                self._check_slice()
            case CommitState.APPLYING:
                self._apply_slice()
            case CommitState.UNDOING:
                self._undo_slice()
        return not self.is_over

    def run(self) -> CommitOutcome:
        """Do all remaining work; an interrupt rolls back."""
        try:
            while self.step():
                pass
        finally:
            if not self.is_over:
                self.abandon()
        return self.outcome

    def abandon(self) -> CommitState:
        """Roll back at once, unless the commit is over; return the final state."""
        if self._state is CommitState.CHECKING:
            self._is_abandoned = True
            self._reason = "the commit was abandoned"
            self._move(CommitState.ROLLED_BACK)
        elif self._state is CommitState.APPLYING:
            self._is_abandoned = True
            self._turn_back("the commit was abandoned")
        while self.step():
            pass
        return self._state

    def take_back(self, reason: str) -> CommitOutcome:
        """Undo a finished commit; nobody may have changed the weights since."""
        self._is_abandoned = True
        self._book().update(self._before)
        self._turn_back(reason)
        while self.step():
            pass
        return self.outcome

    def _check_slice(self) -> None:
        """Read one tile; once all digests are known, compare them with the base."""
        try:
            if self._digests is None and len(self._read) < len(self._tiles):
                tile = self._tiles[len(self._read)]
                self._read[tile] = self._target.digest(tile)
        except RoseError as error:
            self._reason = str(error)
            self._move(CommitState.ROLLED_BACK)
            return
        if self._digests is None:
            if len(self._read) < len(self._tiles):
                return
            self._digests = TileDigests(self._read)
        self._reason = self._wrong_base()
        if self._reason is None:
            self._move(CommitState.APPLYING)
        else:
            self._move(CommitState.ROLLED_BACK)

    def _wrong_base(self) -> str | None:
        manifest, digests = self.staged.manifest, self._book()
        if any(tile not in digests for tile in self._changes):
            return f"version {manifest.version} has tiles that these weights do not have"
        if manifest.is_snapshot:
            return None
        is_base = self._base() == self._base_digest
        if self._is_all:
            is_base &= self._base_digest == manifest.base_digest
        for tile, delta in self.staged.deltas:
            is_base &= delta.base_digest == digests[tile]
        if is_base:
            return None
        return f"the weights are not the base of version {manifest.version}"

    @property
    def _is_all(self) -> bool:
        """True if the target has every tile, so that its digest is the digest of all weights."""
        return len(self._tiles) == self.staged.manifest.tile_count

    def _base(self) -> Digest:
        return self._base_digest if self._digests is None else self._digests.total

    def _apply_slice(self) -> None:
        try:
            if self._next < len(self._changes):
                if self.staged.whole:
                    self._exchange(self._changes[self._next])
                else:
                    self._apply(*self.staged.deltas[self._next])
                self._next += 1
        except RoseError as error:
            self._turn_back(str(error))
            return
        if self._next == len(self._changes):
            self._compare()

    def _exchange(self, tile: int) -> None:
        """Write a whole tile, and keep the elements that it replaces in its place."""
        elements = self.staged.whole[tile]
        before = host_row(bits_of("weights", self._target.bits(tile))).copy()
        self._touched.append((tile, before))
        self._target.write(tile, elements)
        self.staged.whole[tile] = before
        self._fresh[tile] = self._target.digest(tile)

    def _apply(self, tile: int, delta: Delta) -> None:
        if delta.rule is not None:  # STRAT: staged without access to the base
            delta = self._unpacked(tile, delta)
        # Recorded first: a target that fails may have changed the tile.
        self._touched.append((tile, None))
        self._target.apply(tile, delta, undo=False)
        self._touched[-1] = (tile, delta)
        self._fresh[tile] = self._target.digest(tile)

    def _unpacked(self, tile: int, delta: Delta) -> Delta:
        try:
            return strat_unpack(delta, self._target.bits(tile))
        except CorruptData:  # nothing was changed: this tile is not the base
            self._book().update({tile: self._target.digest(tile)})
            raise

    def _compare(self) -> None:
        if not self._is_target():
            self._turn_back(
                f"the digest after version {self.staged.manifest.version} is not the trainer's"
            )
            return
        self._move(CommitState.COMMITTED)
        self._before = {tile: self._book()[tile] for tile in self._fresh}
        self._book().update(self._fresh)

    def _is_target(self) -> bool:
        """Return True if the weights have the digests of the version.

        A receiver with all tiles compares the sum of the digests. Otherwise each tile is compared
        if the manifest has the digests of all tiles, and only the changed tiles if not.
        """
        manifest, digests = self.staged.manifest, self._book()
        if (then := self.staged.digests) is not None:
            return all(self._fresh.get(tile, digests[tile]) == then[tile] for tile in self._tiles)
        if any(self._after[tile] != digest for tile, digest in self._fresh.items()):
            return False
        if self._is_all:
            return digests.total_with(self._fresh) == manifest.digest
        return all(
            self._fresh.get(tile, digests[tile]) == manifest.tile_digests[tile]
            for tile in (self._tiles if manifest.tile_digests else ())
        )

    def _turn_back(self, reason: str) -> None:
        self._reason = reason
        self._move(CommitState.UNDOING)

    def _undo_slice(self) -> None:
        """Undo the latest tile, and check that it is restored."""
        if self._touched:
            self._is_restored &= self._is_undone(*self._touched.pop())
        if not self._touched:
            is_base = self._is_restored
            self._move(CommitState.ROLLED_BACK if is_base else CommitState.QUARANTINED)

    def _is_undone(self, tile: int, undo: Any) -> bool:
        try:
            if isinstance(undo, Delta):
                self._target.apply(tile, undo, undo=True)
            elif undo is not None:
                self._target.write(tile, undo)
            found = self._target.digest(tile)
            if found == self._book()[tile]:
                return True
            if isinstance(undo, Delta):
                is_as_before = self._is_there_and_back(tile, undo, found)
            else:
                is_as_before = undo is not None and digest(undo) == found
        except RoseError:
            return False
        if is_as_before:
            self._book().update({tile: found})
        return is_as_before

    def _is_there_and_back(self, tile: int, delta: Delta, found: Digest) -> bool:
        """Return True if a tile with an unexpected digest has the bits from before the commit.

        The delta is applied again: if memory changed during the commit, the result differs from
        the first result.
        """
        self._target.apply(tile, delta, undo=False)
        is_as_then = self._target.digest(tile) == self._fresh.get(tile)
        self._target.apply(tile, delta, undo=True)
        return is_as_then and self._target.digest(tile) == found

    def _book(self) -> TileDigests:
        if self._digests is None:
            raise InternalError("a commit changes weights before it knows their digests")
        return self._digests

    def _move(self, to: CommitState) -> None:
        check((self._state, to) in _MOVES, f"commit: {self._state.name} -> {to.name}")
        self._state = to
