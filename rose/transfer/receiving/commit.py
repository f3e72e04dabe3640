"""The commit: a staged version becomes the weights tile by tile, or they stay what they were.

CHECKING -> APPLYING -> COMMITTED, with the digest of the trainer, from where nothing goes back. A
base that is another one goes CHECKING -> ROLLED_BACK, and nothing was touched. Any fault after that
goes APPLYING -> UNDOING -> ROLLED_BACK, where what was there is there again, bit for bit, and is
called by its digests, also where it was not what it was held to be; or, when even that fails, to
QUARANTINED: nobody may use such bits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Protocol

import numpy as np

from rose.errors import CorruptData, InternalError, RoseError, check
from rose.transfer.codec.delta import Delta
from rose.transfer.codec.operations import delta_apply, delta_pack
from rose.transfer.codec.strat import host_row, strat_unpack
from rose.transfer.codec.tensor import bits_of
from rose.transfer.digests import Digest, TileDigests
from rose.transfer.manifest import StagedVersion
from rose.transfer.version import Version


class Target(Protocol):
    """Live weights as tiles. One thread changes them."""

    def apply(self, tile: int, delta: Delta, *, undo: bool) -> None:
        """Change one tile by `delta`, or back; on an error the tile is unchanged."""
        ...

    def digest(self, tile: int) -> Digest:
        """Read the tile, and return its digest."""
        ...

    def bits(self, tile: int) -> Any:
        """Return a tile, as the codec takes it; the caller reads it at once and writes nothing."""
        ...


class CommitState(Enum):
    """Where a commit is; the last three are final."""

    CHECKING = "the base is compared; nothing was changed"
    APPLYING = "some tiles are changed"
    UNDOING = "tiles go back"
    COMMITTED = "the weights are the new version"
    ROLLED_BACK = "the weights are the base"
    QUARANTINED = "the weights are no known version"


_MOVES: Final = frozenset(
    {
        (CommitState.CHECKING, CommitState.APPLYING),
        (CommitState.CHECKING, CommitState.ROLLED_BACK),
        (CommitState.APPLYING, CommitState.COMMITTED),
        (CommitState.APPLYING, CommitState.UNDOING),
        (CommitState.UNDOING, CommitState.ROLLED_BACK),
        (CommitState.UNDOING, CommitState.QUARANTINED),
    }
)
_FINAL: Final = frozenset({CommitState.COMMITTED, CommitState.ROLLED_BACK, CommitState.QUARANTINED})


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a commit.

    Args:
        version: that was to be committed.
        state: one of the three final ones.
        digest: of the weights, as far as it is known: of the base where nothing was committed.
        is_abandoned: it was told to go back; the version is not at fault.
        reason: why it went back, one sentence; None when it did not.
        digests: of their tiles, where they are known; nobody changes them any more.
    """

    version: Version
    state: CommitState
    digest: Digest
    is_abandoned: bool = False
    reason: str | None = None
    digests: TileDigests | None = None


class Commit:
    """One attempt to make a staged version the weights, in slices of at most one tile.

    An engine calls `step` at its step boundary until it says False. It may stop for any time in
    between, but nobody may use the weights before the commit is over. An error that is not of rose
    passes through; `abandon` is safe after it.

    Args:
        staged: what to apply.
        target: the weights.
        base_digest: what they are held to be. A seed is for any base, and goes back to whatever
            there was.
        digests: of the target's tiles, from an earlier commit, so that only tiles that change are
            read. Updated when this one is committed. Without them all tiles are read first.
        subscribed: the target's tiles, ascending; None for all.
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
        self._staged = staged
        self._target = target
        self._base_digest = base_digest
        self._is_seed = manifest.is_seed
        self._tiles = range(manifest.tile_count) if subscribed is None else subscribed
        self._after = {chunk.tile: chunk.digest for chunk in manifest.chunks}
        # A seed may come because the digests are not to be believed.
        self._digests = None if self._is_seed else digests
        self._kept = digests
        self._read: dict[int, Digest] = {}
        self._next = 0
        self._fresh: dict[int, Digest] = {}
        # What an undo has to look at: the delta to take back, or None where a target failed.
        self._touched: list[tuple[int, Delta | None]] = []
        self._is_restored = True
        self._is_abandoned = False
        self._reason: str | None = None
        self._state = CommitState.CHECKING

    @property
    def staged(self) -> StagedVersion:
        """Return what is committed."""
        return self._staged

    @property
    def state(self) -> CommitState:
        """Return where it is."""
        return self._state

    @property
    def is_over(self) -> bool:
        """Whether `step` has nothing left to do."""
        return self._state in _FINAL

    @property
    def digests(self) -> TileDigests | None:
        """Return the digests of the tiles for the next commit; None when they are not known."""
        if self._state is CommitState.QUARANTINED:
            return None
        return self._kept if self._digests is None else self._digests

    @property
    def outcome(self) -> Outcome:
        """Return what came of it, once it is over."""
        check(self.is_over, f"the commit of {self._staged.manifest.version} is not over")
        return Outcome(
            version=self._staged.manifest.version,
            state=self._state,
            digest=self._base(),
            is_abandoned=self._is_abandoned,
            reason=self._reason,
            digests=None if self.digests is None else self.digests.copy(),
        )

    def step(self) -> bool:
        """Do one slice of work; return whether there is more."""
        match self._state:
            case CommitState.CHECKING:
                self._check_slice()
            case CommitState.APPLYING:
                self._apply_slice()
            case CommitState.UNDOING:
                self._undo_slice()
        return not self.is_over

    def run(self) -> Outcome:
        """Do all that is left; an interrupt passes on once the weights are a version again."""
        try:
            while self.step():
                pass
        finally:
            if not self.is_over:
                self.abandon()
        return self.outcome

    def abandon(self) -> CommitState:
        """Go back to the base at once, unless it is over, and return what came of it."""
        if self._state is CommitState.CHECKING:
            self._is_abandoned = True
            self._reason = "it was abandoned"
            self._move(CommitState.ROLLED_BACK)
        elif self._state is CommitState.APPLYING:
            self._is_abandoned = True
            self._turn_back("it was abandoned")
        while self.step():
            pass
        return self._state

    def _check_slice(self) -> None:
        """Read one tile; with the last, or when all are known, compare with the base."""
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
        manifest, digests = self._staged.manifest, self._book()
        if any(tile not in digests for tile, _ in self._staged.deltas):
            return f"version {manifest.version} has tiles that these weights do not"
        if self._is_seed:
            return None
        is_base = self._base() == self._base_digest
        if self._is_all:
            is_base &= self._base_digest == manifest.base_digest
        for tile, delta in self._staged.deltas:
            is_base &= delta.base_digest == digests[tile]
        if is_base:
            return None
        return f"version {manifest.version} is for another base than the weights are"

    @property
    def _is_all(self) -> bool:
        """Whether the target has every tile, so that the digest of all of them is its own."""
        return len(self._tiles) == self._staged.manifest.tile_count

    def _base(self) -> Digest:
        return self._base_digest if self._digests is None else self._digests.total

    def _apply_slice(self) -> None:
        try:
            if self._next < len(self._staged.deltas):
                self._apply(*self._staged.deltas[self._next])
                self._next += 1
        except RoseError as error:
            self._turn_back(str(error))
            return
        if self._next == len(self._staged.deltas):
            self._compare()

    def _apply(self, tile: int, delta: Delta) -> None:
        if self._is_seed:
            delta = _from_base(delta, self._target.bits(tile))
        if delta.rule is not None:  # its receiver had no base to unpack it with
            delta = self._unpacked(tile, delta)
        # Noted first: a target that fails is not believed to have changed nothing.
        self._touched.append((tile, None))
        self._target.apply(tile, delta, undo=False)
        self._touched[-1] = (tile, delta)
        self._fresh[tile] = self._target.digest(tile)

    def _unpacked(self, tile: int, delta: Delta) -> Delta:
        try:
            return strat_unpack(delta, self._target.bits(tile))
        except CorruptData:  # nothing was changed: what is there is another base
            self._book().update({tile: self._target.digest(tile)})
            raise

    def _compare(self) -> None:
        if not self._is_target():
            self._turn_back(f"the digest of {self._staged.manifest.version} is not the trainer's")
            return
        self._move(CommitState.COMMITTED)
        self._book().update(self._fresh)

    def _is_target(self) -> bool:
        """Whether the weights are the version: each tile that changed, and, where it is known, all.

        Without the digests of all tiles, those that did not change are what the base had.
        """
        manifest, digests = self._staged.manifest, self._book()
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
        """Take one tile back, the latest first, and see that it is what it was."""
        if self._touched:
            self._is_restored &= self._is_undone(*self._touched.pop())
        if not self._touched:
            is_base = self._is_restored
            self._move(CommitState.ROLLED_BACK if is_base else CommitState.QUARANTINED)

    def _is_undone(self, tile: int, delta: Delta | None) -> bool:
        try:
            if delta is not None:
                self._target.apply(tile, delta, undo=True)
            found = self._target.digest(tile)
            if found == self._book()[tile]:
                return True
            if delta is None or not self._is_there_and_back(tile, delta, found):
                return False
        except RoseError:
            return False
        self._book().update({tile: found})
        return True

    def _is_there_and_back(self, tile: int, delta: Delta, found: Digest) -> bool:
        """Whether a tile that is not what it was held to be is what it was before the commit.

        Memory that changed meanwhile shows: what came of the tile then does not come again.
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


def _from_base(whole: Delta, base: Any) -> Delta:
    """Return the delta from `base` to what `whole` makes of zeros: a seed that can be undone."""
    held = host_row(bits_of("weights", base)).copy()
    bits = np.zeros_like(held)
    delta_apply(bits, whole)
    return delta_pack(bits, held, block_elements=whole.block_elements)
