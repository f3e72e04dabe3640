"""Rollouts that are written down as they happen, and go on where they were."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from rose.clock import Clock
from rose.errors import InternalError, InvalidArgument
from rose.scheduler.core import SchedulerCore
from rose.scheduler.course import SlowCopy
from rose.scheduler.front_events import Entry, Registered, Step
from rose.scheduler.hearsay import EarlyNews, believable
from rose.scheduler.rollouts import Rollouts
from rose.scheduler.settings import PlacementPolicy, SchedulerSettings
from rose.scheduler.state import Checkpoint, Outcome, RolloutsState
from rose.scheduler.watching import FrontWatch, Watches
from rose.scheduler.worker import Worker, WorkerEvent, WorkerLost
from rose.units import NS_PER_S

if TYPE_CHECKING:
    from rose.scheduler.store_file import FileStore

# How often a checkpoint is written, in seconds; a restart reads as much journal.
CHECKPOINT_S: Final = 30.0
# A worker of an earlier life that is not back so long after a restart is lost; its turns, and those
# placed there until then, wait so long.
REJOIN_S: Final = 5.0
# Leases run out while every turn is with its environment, too. A longer time without a step is
# taken for one in which the process stood still.
_IDLE_NS: Final = NS_PER_S // 2
# Far from the end of 64 bits, so that every deadline behind it fits them.
_NOW_MAX: Final = 1 << 60


class CoreTime:
    """A clock's time, never before what was said already, by this object or by an earlier life.

    A machine that was started anew counts from 0, a checkpoint may come from another machine, and
    a clock that goes back must neither stop a scheduler (a core refuses to go back in time) nor
    hold it up until the clock is where it was: time goes on from there at once.

    Args:
        clock: where time comes from.
        not_before_ns: the last time of an earlier life.
    """

    def __init__(self, clock: Clock, *, not_before_ns: int = 0) -> None:
        self._clock = clock
        self._seen_ns = clock.now_ns()
        self._ahead_ns = max(0, not_before_ns - self._seen_ns)

    def now_ns(self) -> int:
        """Return the time."""
        seen_ns = self._clock.now_ns()
        self._ahead_ns += max(0, self._seen_ns - seen_ns)
        self._seen_ns = seen_ns
        return min(seen_ns + self._ahead_ns, _NOW_MAX)


class Durable:
    """Steps rollouts; each step is in the store, if there is one, before anything is done about it.

    One thread at a time, but for `save`. Whatever writes raises Unavailable where the disk fails.
    """

    def __init__(
        self,
        settings: SchedulerSettings,
        policy: PlacementPolicy,
        clock: Clock,
        store: "FileStore | None",
        watches: Sequence[FrontWatch],
    ) -> None:
        self._settings = settings
        self._policy = policy
        self._clock = clock
        self._store = store
        self._watches = Watches(watches)
        self._time = CoreTime(clock)
        self._core = SchedulerCore(settings, policy)
        self._early = EarlyNews()
        self.nonsense = 0  # events of workers that no count fits; they change nothing
        self._entries: list[Entry] = []  # taken in since the last step
        self._rejoin_ns = 0
        self._checkpoint_ns = 0
        self.rollouts = Rollouts(self._core, RolloutsState(), self._watches)

    # ---- beginning ------------------------------------------------------------------------------

    def open(self) -> None:
        """Go on where the store says; then a new journal begins.

        Raises:
            CorruptData: the store does not hold what was written.
            InvalidArgument: it holds the state of a scheduler with other settings.
            Unavailable: it cannot be read or written.
        """
        if self._store is not None and (found := self._store.load()) is not None:
            self._restore(*found)
        self._time = CoreTime(self._clock, not_before_ns=self.rollouts.state.now_ns)
        now_ns = self._time.now_ns()
        self._rejoin_ns = now_ns + round(REJOIN_S * NS_PER_S)
        # Workers renewed while nobody heard it; they know of no lease that ran out meanwhile.
        self._core.keep_leases(self._rejoin_ns)
        self.save_now()
        self._watches.show(lambda watch: watch.opened(self.rollouts.state))

    def _restore(self, checkpoint: Checkpoint, steps: Sequence[Step]) -> None:
        self._check_settings(checkpoint)
        self._core = SchedulerCore.restored(checkpoint.core)
        self.rollouts = Rollouts(self._core, checkpoint.state(), Watches())
        taken = 0
        try:
            for step in steps:
                for entry in step.entries:
                    self.rollouts.take(entry)
                self.rollouts.step(step.now_ns)
                taken += 1
        except (InvalidArgument, InternalError):
            if taken + 1 < len(steps):
                raise
            # What ended the life before must not end this one: nothing was done about it.
            self._restore(checkpoint, steps[:-1])
        self.rollouts.refusals = []  # Workers that are not there refuse nothing.
        self.rollouts.watches = self._watches

    def _check_settings(self, checkpoint: Checkpoint) -> None:
        if checkpoint.policy is not self._policy:
            raise InvalidArgument(
                f"the checkpoint was written with the policy {checkpoint.policy.name}, not "
                f"{self._policy.name}: give the same, or another store"
            )
        before, now = checkpoint.settings.values(), self._settings.values()
        for name in now:
            if before[name] != now[name]:
                raise InvalidArgument(
                    f"the checkpoint was written with {name}={before[name]}, not {now[name]}: "
                    "give the same settings, or another store"
                )

    # ---- steps ----------------------------------------------------------------------------------

    def hear(self, event: WorkerEvent) -> None:
        """Take in what a worker says; what it says of its lease waits until it is registered."""
        heard = believable(event)
        if heard is None:
            self.nonsense += 1
            return
        if not self.rollouts.is_here(heard.worker) and self._early.keep(heard):
            return
        if isinstance(heard, WorkerLost):
            self.rollouts.stop_turns(heard.worker)
        self.rollouts.take(heard)
        self._note(heard)

    def take(self, entry: Entry, worker: Worker | None = None) -> None:
        """Take in what a caller says.

        Args:
            entry: what it says.
            worker: the one that registers.

        Raises:
            InvalidArgument: it contradicts what was said before; nothing has changed.
        """
        if isinstance(entry, WorkerLost):
            self.hear(entry)
            return
        if isinstance(entry, Registered) and worker is not None:
            self.rollouts.register(entry, worker)
            self._note(entry)
            for event in self._early.take(entry.worker):
                self.rollouts.take(event)
                self._note(event)
            return
        self.rollouts.take(entry)
        self._note(entry)

    def _note(self, entry: Entry) -> None:
        self._entries.append(entry)
        self._watches.show(lambda watch: watch.heard(entry))

    def step(self) -> list[Outcome]:
        """Write down what was taken in, and step the core with it.

        Raises:
            Unavailable: it cannot be written down; nothing was done.
            InvalidArgument: what was taken in contradicts itself.
            InternalError: a bug in the scheduler.
        """
        now_ns = self._time.now_ns()
        refusals, self.rollouts.refusals = self.rollouts.refusals, []
        for refusal in refusals:
            self.hear(refusal)
        if now_ns >= self._rejoin_ns:
            for number in self.rollouts.absent():
                self.hear(WorkerLost(number, f"it was not back after {REJOIN_S} s"))
        entries, self._entries = self._entries, []
        if self._store is not None:
            self._store.append(Step(now_ns, tuple(entries)))
        outcomes = self.rollouts.step(now_ns)
        self._watches.show(lambda watch: watch.stepped(outcomes))
        return outcomes

    def needs_step(self) -> bool:
        """Whether something was taken in, or may come of time alone."""
        return (
            bool(self._entries)
            or bool(self.rollouts.refusals)
            or not self.rollouts.is_idle()
            or self._time.now_ns() - self.rollouts.state.now_ns >= _IDLE_NS
        )

    # ---- checkpoints ----------------------------------------------------------------------------

    def want_checkpoint(self) -> None:
        """Make the next one due."""
        if self._store is None:
            raise InvalidArgument("a scheduler without a store writes no checkpoint")
        self._checkpoint_ns = 0

    def is_checkpoint_due(self) -> bool:
        """Whether it is time for the next one."""
        return self._store is not None and self._time.now_ns() >= self._checkpoint_ns

    def begin_checkpoint(self) -> tuple[Checkpoint, SlowCopy]:
        """Begin what is to be saved, and the journal behind it. Nothing waits for a step.

        Returns:
            All but the trajectories, and their copy, which is not made yet.
        """
        if self._store is None or self._entries:
            raise InternalError("a checkpoint is of the state between two steps, in a store")
        now_ns = self._time.now_ns()
        self._checkpoint_ns = now_ns + round(CHECKPOINT_S * NS_PER_S)
        head = Checkpoint(
            sequence=self._store.rotate(),
            policy=self._policy,
            settings=self._settings,
            core=self._core.snapshot(),
            trajectories=(),
            rest=self.rollouts.state.copy(),
        )
        return head, self.rollouts.begin_copy()

    def save(self, head: Checkpoint, copy: SlowCopy) -> None:
        """Write a checkpoint to the disk; any thread. The copy is whole."""
        if self._store is not None:
            self._store.save(replace(head, trajectories=copy.whole()))

    def save_now(self) -> None:
        """Write a checkpoint in this thread, if there is a store."""
        if self._store is None:
            return
        head, copy = self.begin_checkpoint()
        while not copy.advance():
            pass  # Nothing else is to be done in this thread.
        self.save(head, copy)

    def close(self) -> None:
        """Write nothing more."""
        self._watches.show(lambda watch: watch.close())
        if self._store is not None:
            self._store.close()
