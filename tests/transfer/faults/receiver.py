"""A receiver of a run: its staging without a thread, its commits in slices, and its memory."""

import threading
from random import Random
from typing import Final

from rose.clock import Clock
from rose.errors import CorruptData, DeadlineExceeded, InvalidArgument, OutOfMemory, Unavailable
from rose.transfer import Commit, Subscription, Version
from rose.transfer.digests import TileDigests
from rose.transfer.manifest import NAMELESS, StagedVersion
from rose.transfer.receiving.chain import Held
from rose.transfer.receiving.commit import CommitOutcome, CommitState
from rose.transfer.receiving.puller import Puller
from rose.transfer.receiving.scrub import Scrub
from rose.transfer.receiving.staging import ReceiverState, Staging
from rose.transfer.signing import Signing
from rose.transfer.source import Source
from tests.transfer.faults.history import History, demand
from tests.transfer.faults.shards import (
    SHARES,
    TILES,
    Bits,
    Fault,
    Killed,
    Memory,
    copied,
    flip,
    random_bits,
)

# What `Receiver` takes for the world's doing; anything else is a bug and ends its thread.
WORLD: Final = (CorruptData, DeadlineExceeded, InvalidArgument, OutOfMemory, Unavailable)
COMMIT_SLICES_MAX: Final = 200


class Stop(threading.Event):
    """What a puller waits on; the wait takes virtual time."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def wait(self, timeout: float | None = None) -> bool:
        self._clock.sleep(timeout or 0.0)
        return self.is_set()


class Receiver:
    """One receiver over all lives of its process.

    Args:
        name: whose tiles it has.
        wire: where it pulls from.
        history: what was true.
        signing: with the key of the publisher.
        clock: virtual.
        rng: for the weights that it begins with.
    """

    def __init__(
        self,
        name: str,
        wire: Source,
        history: History,
        *,
        signing: Signing,
        clock: Clock,
        rng: Random,
    ) -> None:
        self.name = name
        self.tiles = SHARES[name]
        self._wire = wire
        self._history = history
        self._signing = signing
        self.clock = clock
        self.memory = Memory(random_bits(rng, self.tiles), lambda: None)
        self.life = 0
        self.is_rounding = False
        # Bits that flipped at rest, and that nothing has looked at since.
        self.corrupted: Bits = {}
        self.begin(rng)

    def begin(self, rng: Random, bits: Bits | None = None, held: Version = NAMELESS) -> None:
        """Start the process on the weights that are there, or on `bits`, under a name."""
        self.life += 1
        if bits is not None:
            self.memory = Memory(copied(bits, self.tiles), lambda: None)
        self.memory.faults.clear()
        self.corrupted = {}
        digests = TileDigests({tile: self.memory.digest(tile) for tile in self.tiles})
        self.digests = digests if rng.random() < 0.5 else None
        self.commit: Commit | None = None
        self._reads_all = False
        self.last = held
        self._is_proven = False
        # A process that begins without a version may be one that nobody uses before it has one.
        lands = held == NAMELESS and rng.random() < 0.5
        self.memory.written = lambda tile: self.corrupted.pop(tile, None)
        self.staging = Staging(
            self._wire,
            self.name,
            Held(held, digests.total),
            Subscription(TILES, self.tiles),
            puller=Puller(self._wire, Stop(self.clock), retries=1, signing=self._signing),
            on_staged=lambda: None,
            base=self.memory.bits if rng.random() < 0.5 else None,
            signing=self._signing,
            digests=None if self.digests is None else digests.copy(),
            lands=self.memory if lands else None,
        )

    @property
    def version(self) -> Version:
        return self.staging.held

    @property
    def is_quarantined(self) -> bool:
        return self.staging.state is ReceiverState.QUARANTINED

    # ---- its two threads, a step at a time

    def round(self) -> str | None:
        """Let the side of the network do what it would; return what was in its way."""
        if self.is_rounding:
            return None
        life, self.is_rounding = self.life, True
        try:
            self.staging.round(0.5)
        except WORLD as error:
            return str(error)
        except Killed:
            if life == self.life:
                self.begin(Random(life))
        finally:
            self.is_rounding = False
        return None

    def step(self, slices: int) -> None:
        """Let the engine commit what lies ready, so many slices of it."""
        if self.commit is None and not self._take():
            return
        for _ in range(slices):
            if self.commit is None or not self._slice():
                return

    def _take(self) -> bool:
        staged = self.take()
        if staged is not None:
            self.commit = self.commit_of(staged)
        return staged is not None

    def take(self) -> StagedVersion | None:
        """Take what lies ready, and see that it was published."""
        staged = self.staging.take_staged()
        if staged is not None:
            self._history.check_staged(self.name, staged, self.tiles)
        return staged

    def commit_of(self, staged: StagedVersion) -> Commit:
        is_named = staged.manifest.is_snapshot and not staged.whole
        self._reads_all = not is_named and (self.digests is None or staged.manifest.is_snapshot)
        self._touched = set(staged.tiles)
        return Commit(
            staged,
            self.memory,
            self.staging.digest,
            digests=self.digests,
            subscribed=self.tiles,
        )

    def _slice(self) -> bool:
        commit = self.commit
        try:
            if commit.step():
                return True
        except Killed:
            self.begin(Random(self.life))
            return False
        self.end(commit.outcome)
        return False

    def abandon(self) -> None:
        if self.commit is None:
            return
        try:
            self.commit.abandon()
        except Killed:
            self.begin(Random(self.life))
        else:
            self.end(self.commit.outcome)

    def end(self, outcome: CommitOutcome) -> None:
        """Report what came of a commit, and note what it has seen."""
        commit, self.commit = self.commit, None
        self.digests = commit.digests
        if commit.state is CommitState.QUARANTINED:
            demand(outcome.reason, f"{self.name} is in quarantine and nobody knows why")
        elif commit.state is CommitState.COMMITTED:
            self._is_proven = True
            # Whatever it read, it would have seen.
            seen = self.tiles if self._reads_all else self._touched
            self.corrupted = {t: bits for t, bits in self.corrupted.items() if t not in seen}
        elif outcome.digest != self.staging.digest:
            self.corrupted = {}  # it was seen, and the weights have no name until they are repaired
        self.staging.report(outcome)

    # ---- what happens to it

    def fail(self, rng: Random) -> None:
        method = rng.choice(("apply", "apply", "apply", "undo", "write", "digest", "bits"))
        hows = ("early", "early", "late", "killed", "killed late")
        if method in {"apply", "undo", "write"}:
            hows += ("silent",)
        self.memory.faults.append(Fault(method, rng.randint(1, 6), rng.choice(hows)))

    def corrupt(self, rng: Random) -> None:
        """Let a bit flip at rest."""
        if self.commit is not None or self.is_quarantined:
            return
        tile = rng.choice(self.tiles)
        place = (tile, rng.getrandbits(16), rng.getrandbits(16))
        mask = self.corrupted.setdefault(tile, self.memory.held[tile] ^ self.memory.held[tile])
        flip(self.memory.held, *place)
        flip({tile: mask}, *place)

    def scrub(self) -> bool:
        """Read all tiles between two steps; those that are not as they were are repaired.

        Returns:
            Whether it was a time for that.
        """
        if self.commit is not None or self.digests is None or self.is_quarantined:
            return False
        scrub = Scrub(self.memory, self.digests, clock=self.clock)
        try:
            while scrub.step(0):
                pass
        except CorruptData:
            return True
        except Killed:
            self.begin(Random(self.life))
            return True
        if scrub.corrupted:
            self.corrupted = {}
            self.staging.repair(scrub.digests)
        return True

    # ---- what must be true

    def check(self) -> None:
        """See that weights an engine would use are what they are called."""
        held = self.staging.held
        if self.commit is not None or self.is_quarantined:
            return
        if held.run == "" or not self._is_proven:
            return  # it knows that it does not know, or has the word of its caller for it
        now = (held.incarnation, held.n)
        demand(
            now >= (self.last.incarnation, self.last.n),
            f"{self.name} went from {self.last} back to {held}",
        )
        self.last = held
        bits = {
            t: bits ^ self.corrupted.get(t, bits ^ bits) for t, bits in self.memory.held.items()
        }
        self._history.check_bits(self.name, held, bits)
