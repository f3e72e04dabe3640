"""One rank's side of a replica: its receiver, its engine, and what its coordinator says.

The engine's thread is in a `ReplicaPause` from when its steps stop to when they may run again. All
commits of a replica's rank happen there, and nowhere else.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from rose.clock import Clock
from rose.errors import InternalError, check
from rose.transfer.digests import TileDigests
from rose.transfer.manifest import StagedVersion
from rose.transfer.receiving.commit import Commit, CommitState, Outcome
from rose.transfer.replicas.messages import Order, RankPhase, Word
from rose.transfer.replicas.rank import ReplicaRank, Todo
from rose.transfer.version import Version
from rose.units import NS_PER_MS

# How long a slice waits for news: an engine looks in between whether it is to stop.
SLICE_S: Final = 0.01


class ReplicaReceiver(Protocol):
    """A `rose.transfer.Receiver`, as far as a rank needs it."""

    @property
    def held(self) -> Version:
        """What the weights are."""
        ...

    @property
    def staged_version(self) -> Version | None:
        """What lies ready."""
        ...

    @property
    def unreachable(self) -> Version | None:
        """What it was to stop at, if that cannot be made any more."""
        ...

    def aim(self, version: Version | None, *, is_direct: bool = False) -> None:
        """Stop at a version."""
        ...

    def take_staged(self) -> StagedVersion | None:
        """Hand out what lies ready; `report` must follow."""
        ...

    def report(self, outcome: Outcome) -> None:
        """Take what came of it."""
        ...

    def drifted(self, digests: TileDigests) -> None:
        """Repair weights that are others than they are held to be."""
        ...


class MakeCommit(Protocol):
    """Makes the transaction for a staged version."""

    def __call__(self, staged: StagedVersion, *, is_held: bool) -> Commit:
        """Return it; nothing has changed yet."""
        ...


@dataclass(frozen=True, slots=True)
class PauseParts:
    """Where the time of a pause went, from the first slice after a step to the next step.

    Args:
        begin_ms: until a commit began: to leave use together, or to stage what was missing.
        apply_ms: of commits, until the digests matched; of several, the sum.
        verdict_ms: from the last match until all ranks had matched.
        resume_ms: from there until all had kept it.
    """

    begin_ms: float
    apply_ms: float
    verdict_ms: float
    resume_ms: float

    @property
    def pause_ms(self) -> float:
        """Return all of it."""
        return self.begin_ms + self.apply_ms + self.verdict_ms + self.resume_ms


class ReplicaMember:
    """Joins one rank's parts. Any thread may call; the lock guards all of it.

    Under the lock only the receiver is called, which calls nobody back from there.

    It does nothing before `attach`.

    Args:
        machine: of this rank.
        make_commit: makes transactions over its weights.
        ask_pause: has the engine run a pause at its next step boundary; must not wait. The engine
            of a rank runs no step before the first pause, which comes at once, is over.
        clock: where time comes from.
    """

    def __init__(
        self,
        machine: ReplicaRank,
        make_commit: MakeCommit,
        ask_pause: Callable[["ReplicaPause"], None],
        *,
        clock: Clock,
    ) -> None:
        self._machine = machine
        self._receiver: ReplicaReceiver | None = None
        self._make_commit = make_commit
        self._ask_pause = ask_pause
        self._clock = clock
        self._news = threading.Condition()
        self._tell: Callable[[Word], None] | None = None
        self._pause: ReplicaPause | None = None
        self._is_engine_gone = False
        self.parts: PauseParts | None = None

    def attach(self, receiver: ReplicaReceiver) -> None:
        """Begin, with the receiver of the rank's tiles; its `on_staged` is `look`."""
        self._receiver = receiver
        self.look()

    @property
    def held(self) -> Version:
        """Return what its weights are."""
        with self._news:
            return self._machine.held

    @property
    def phase(self) -> RankPhase:
        """Return where it is."""
        with self._news:
            return self._machine.phase

    # ---- the link -------------------------------------------------------------------------------

    def met(self, coordinator: int, tell: Callable[[Word], None]) -> None:
        """Follow a coordinator.

        Args:
            coordinator: its number.
            tell: takes what this rank says, from any thread; must not wait.
        """
        with self._news:
            self._machine.met(coordinator)
            self._tell = tell
        self.look()

    def lost(self) -> None:
        """Note that the coordinator is gone."""
        with self._news:
            self._tell = None
            self._machine.lost()
            self._news.notify_all()

    def hear(self, order: Order) -> None:
        """Take an order."""
        with self._news:
            self._machine.ordered(order, self._clock.now_ns())
        self.look()

    def look(self) -> None:
        """See to deadlines and what is staged, and say where it is; to be called now and then."""
        if self._receiver is None:
            return
        with self._news:
            self._machine.tick(self._clock.now_ns())
            self._refresh(self._receiver)
            asked = None
            is_running = self._pause is None and not self._is_engine_gone
            if is_running and self._machine.todo() is not Todo.RUN:
                asked = self._pause = ReplicaPause(self, self._clock)
            self._news.notify_all()
        if asked is not None:
            self._ask_pause(asked)
        self._say()

    def _refresh(self, receiver: ReplicaReceiver) -> None:
        version, is_direct = self._machine.aim
        receiver.aim(version, is_direct=is_direct)
        self._machine.staged(receiver.staged_version, receiver.unreachable)

    def _say(self) -> None:
        with self._news:
            word, tell = self._machine.word(), self._tell
        if word is not None and tell is not None:
            tell(word)

    # ---- the engine's thread, from its pause ----------------------------------------------------

    def next_commit(self) -> tuple[Todo, Commit | None]:
        """Return what to do, and what to commit if that is it."""
        receiver = self._attached()
        with self._news:
            self._refresh(receiver)
            todo = self._machine.todo()
            if todo not in {Todo.TAKE, Todo.TAKE_ALONE}:
                return todo, None
            staged = receiver.take_staged()
            self._machine.took(None if staged is None else staged.manifest.version)
        self._say()
        if staged is None:
            return Todo.WAIT, None
        return todo, self._make_commit(staged, is_held=todo is Todo.TAKE)

    def _attached(self) -> ReplicaReceiver:
        if self._receiver is None:
            raise InternalError("a rank pauses before it has a receiver")
        return self._receiver

    def verdict(self) -> Todo:
        """Return what is said of the commit that is under way."""
        with self._news:
            return self._machine.todo()

    def wait(self) -> None:
        """Wait for news, for one slice at most."""
        with self._news:
            if self._machine.todo() is Todo.WAIT:
                self._news.wait(SLICE_S)
                self._machine.tick(self._clock.now_ns())

    def matched(self) -> None:
        """Say that the weights are the version."""
        with self._news:
            self._machine.matched()
        self._say()

    def ended(self, outcome: Outcome) -> None:
        """Say what came of a commit."""
        receiver = self._attached()
        with self._news:
            receiver.report(outcome)
            is_kept = outcome.state is CommitState.COMMITTED
            self._machine.ended(
                receiver.held,
                is_kept=is_kept,
                is_fault=not is_kept and not outcome.is_abandoned,
                is_lost=outcome.state is CommitState.QUARANTINED,
            )
        self.look()

    def pause_is_over(self, parts: PauseParts) -> None:
        """Note that steps run again; orders that came meanwhile ask for the next pause."""
        with self._news:
            self._pause, self.parts = None, parts
        self.look()

    def engine_is_gone(self) -> None:
        """Ask for no more pauses: the engine has abandoned one because it stops."""
        with self._news:
            self._is_engine_gone = True


class ReplicaPause:
    """What an engine runs, slice by slice, from when its steps stop until they may run again.

    It is a commit as an engine sees one: `step` says False when it is over, `state` how it ended.
    """

    def __init__(self, member: ReplicaMember, clock: Clock) -> None:
        self._member = member
        self._clock = clock
        self._before = member._machine.held  # made under the member's lock
        self._commit: Commit | None = None
        self._is_matched = False
        self._has_committed = False
        self._state = CommitState.CHECKING
        self._version = self._before
        # When it last went from one part to the next.
        self._at_ns: int | None = None
        self._spent_ns = dict.fromkeys(("begin", "apply", "verdict", "resume"), 0)
        self._part = "begin"

    @property
    def state(self) -> CommitState:
        """Return how it stands: COMMITTED when the weights are another version than before."""
        return self._state

    @property
    def version(self) -> int:
        """Return what the weights are when it is over."""
        return self._version.n

    def step(self) -> bool:
        """Do one slice, or wait a little; False when steps may run."""
        if self._state not in {CommitState.CHECKING, CommitState.APPLYING}:
            return False
        if self._at_ns is None:
            self._at_ns = self._clock.now_ns()
        if self._commit is None:
            self._look_for_commit()
        else:
            self._advance(self._commit)
        return self._state in {CommitState.CHECKING, CommitState.APPLYING}

    def abandon(self) -> CommitState:
        """Go back if a version is held, because the engine stops; returns how it ended."""
        self._member.engine_is_gone()
        if self._commit is not None:
            self._commit.abandon()
            self._end(self._commit)
        if self._state in {CommitState.CHECKING, CommitState.APPLYING}:
            self._close(is_lost=self._member.phase is RankPhase.QUARANTINED)
        return self._state

    def _look_for_commit(self) -> None:
        todo, commit = self._member.next_commit()
        if commit is not None:
            self._commit, self._is_matched = commit, False
            self._state = CommitState.APPLYING
            self._go_to("apply")
        elif todo is Todo.RUN:
            self._close(is_lost=False)
        elif self._member.phase is RankPhase.QUARANTINED:
            self._close(is_lost=True)
        else:
            self._member.wait()

    def _advance(self, commit: Commit) -> None:
        match self._member.verdict():
            case Todo.KEEP:
                commit.keep()
            case Todo.ABANDON:
                commit.abandon()
            case _ if self._is_matched:
                self._member.wait()
            case _:
                commit.step()
        if commit.is_over:
            self._end(commit)
        elif commit.state is CommitState.MATCHED and not self._is_matched:
            self._is_matched = True
            self._go_to("verdict")
            self._member.matched()

    def _end(self, commit: Commit) -> None:
        self._commit = None
        self._has_committed |= commit.state is CommitState.COMMITTED
        self._go_to("resume")
        self._member.ended(commit.outcome)

    def _close(self, *, is_lost: bool) -> None:
        self._go_to("resume")
        self._version = self._member.held
        if is_lost:
            self._state = CommitState.QUARANTINED
        elif self._has_committed:
            self._state = CommitState.COMMITTED
        else:
            self._state = CommitState.ROLLED_BACK
        check(self._commit is None, "a pause ends while it holds a version")
        self._member.pause_is_over(
            PauseParts(
                **{f"{name}_ms": spent / NS_PER_MS for name, spent in self._spent_ns.items()}
            )
        )

    def _go_to(self, part: str) -> None:
        now_ns = self._clock.now_ns()
        if self._at_ns is not None:
            self._spent_ns[self._part] += now_ns - self._at_ns
        self._part, self._at_ns = part, now_ns
