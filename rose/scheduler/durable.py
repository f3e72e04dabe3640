"""Rollouts that are written down as they happen, and go on where they were."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from rose.clock import Clock
from rose.errors import InternalError, InvalidArgument
from rose.scheduler.copying import SlowCopy
from rose.scheduler.core import SchedulerCore
from rose.scheduler.core_time import CoreTime
from rose.scheduler.early import EarlyNews
from rose.scheduler.elastic_limits import FrontLimits
from rose.scheduler.front_events import Entry, Registered, Step
from rose.scheduler.hearsay import believable
from rose.scheduler.order import Order
from rose.scheduler.rollouts import Outcome, Rollouts, RolloutsState
from rose.scheduler.settings import PlacementPolicy, SchedulerSettings
from rose.scheduler.store import Checkpoint, Store
from rose.scheduler.watching import FrontWatch, Watches
from rose.scheduler.worker import Worker, WorkerEvent, WorkerLost
from rose.units import NS_PER_S

_BLIND: Final = FrontWatch()
# Leases run out while every turn is with its environment, too. A longer time without a step is
# taken for one in which the process stood still.
_IDLE_NS: Final = NS_PER_S // 2


class Draft:
    """A checkpoint that is being made, of the scheduler as it was when that began.

    One thread at a time, that of the steps.

    Args:
        head: all of it but the trajectories.
        copy: of these.
    """

    def __init__(self, head: Checkpoint, copy: SlowCopy) -> None:
        self._head = head
        self._copy = copy

    def advance(self) -> bool:
        """Make a little more of it, and return whether it is whole. Steps may come between."""
        return self._copy.advance()

    def checkpoint(self) -> Checkpoint:
        """Return it; it is whole."""
        return replace(self._head, trajectories=self._copy.whole())


class Durable:
    """Steps rollouts; each step is in the store before anything is done about it.

    One thread at a time, but for `save`.

    Args:
        settings: of the core.
        policy: of the core.
        clock: where time comes from.
        limits: of the front.
        store: None keeps nothing.
        watches: see everything that happens in this life.
    """

    def __init__(
        self,
        settings: SchedulerSettings,
        policy: PlacementPolicy,
        *,
        clock: Clock,
        limits: FrontLimits,
        store: Store | None,
        watches: Sequence[FrontWatch],
    ) -> None:
        self._settings = settings
        self._policy = policy
        self._clock = clock
        self._limits = limits
        self._store = store
        self._watch = Watches(watches)
        self._time = CoreTime(clock)
        self._core = SchedulerCore(settings, policy)
        self._early = EarlyNews()
        self._entries: list[Entry] = []  # taken in since the last step
        self._rejoin_ns = 0
        self._checkpoint_ns = 0
        self.rollouts = Rollouts(self._core, RolloutsState(), self._watch)

    # ---- beginning ------------------------------------------------------------------------------

    def open(self) -> None:
        """Go on where the store says; then a new journal begins.

        Raises:
            CorruptData: the store does not hold what was written.
            InvalidArgument: it holds the state of a scheduler with other settings.
            Unavailable: it cannot be read or written.
        """
        if self._store is not None:
            found = self._store.load()
            if found is not None:
                self._restore(*found)
        self._time = CoreTime(self._clock, not_before_ns=self.rollouts.state.now_ns)
        now_ns = self._time.now_ns()
        self._rejoin_ns = now_ns + round(self._limits.rejoin_s * NS_PER_S)
        # Workers renewed while nobody heard it; they know of no lease that ran out meanwhile.
        self._core.keep_leases(self._rejoin_ns)
        self.save_now()
        self._watch.opened(self.rollouts)

    def _restore(self, checkpoint: Checkpoint, steps: Sequence[Step]) -> None:
        self._check_settings(checkpoint)
        self._core = SchedulerCore.restored(checkpoint.core)
        self.rollouts = Rollouts(self._core, checkpoint.state().copy(), _BLIND)
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
        self.rollouts.take_refusals()  # Workers that are not there refuse nothing.
        self.rollouts.driver.watch = self._watch

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
            self.rollouts.driver.nonsense += 1
            return
        if not self.rollouts.is_here(heard.worker) and self._early.keep(heard):
            return
        if isinstance(heard, WorkerLost):
            self._stop_turns_of(heard.worker)
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
        self._watch.heard(entry)

    def step(self) -> list[Outcome]:
        """Write down what was taken in, and step the core with it.

        Raises:
            Unavailable: it cannot be written down; nothing was done.
            InvalidArgument: what was taken in contradicts itself.
            InternalError: a bug in the scheduler.
        """
        now_ns = self._time.now_ns()
        began_ns = self._clock.now_ns()
        for refusal in self.rollouts.take_refusals():
            self.hear(refusal)
        if now_ns >= self._rejoin_ns:
            for number in self.rollouts.absent():
                self.hear(WorkerLost(number, f"it was not back after {self._limits.rejoin_s} s"))
        entries, self._entries = self._entries, []
        if self._store is not None:
            self._store.append(Step(now_ns, tuple(entries)))
        outcomes = self.rollouts.step(now_ns)
        self._watch.stepped(outcomes, (self._clock.now_ns() - began_ns) / NS_PER_S)
        return outcomes

    def needs_step(self) -> bool:
        """Whether something was taken in, or may come of time alone."""
        return (
            bool(self._entries)
            or self.rollouts.has_refusals()
            or not self.rollouts.is_idle()
            or bool(self.rollouts.absent())
            or (bool(self.rollouts.driver.attached()) and self._is_long_ago())
        )

    def _is_long_ago(self) -> bool:
        return self._time.now_ns() - self.rollouts.state.now_ns >= _IDLE_NS

    def stop_turns(self) -> None:
        """Take every turn back from its worker."""
        for worker in self.rollouts.driver.attached():
            self._stop_turns_of(worker.number)

    def _stop_turns_of(self, number: int) -> None:
        worker = self.rollouts.driver.worker(number)
        if worker is None:
            return
        for course in self.rollouts.state.trajectories.values():
            if course.is_on(number):
                with Order():  # One that is broken too, it is let go anyway.
                    worker.stop_turn(course.number)

    # ---- checkpoints ----------------------------------------------------------------------------

    def is_checkpoint_due(self) -> bool:
        """Whether it is time for the next one."""
        return self._store is not None and self._time.now_ns() >= self._checkpoint_ns

    def begin_checkpoint(self) -> Draft:
        """Begin what is to be saved, and the journal behind it.

        Raises:
            InvalidArgument: there is no store.
            Unavailable: it cannot be written; the journal before goes on.
        """
        if self._store is None:
            raise InvalidArgument("a scheduler without a store writes no checkpoint")
        now_ns = self._time.now_ns()
        self._checkpoint_ns = now_ns + round(self._limits.checkpoint_s * NS_PER_S)
        state = self.rollouts.state
        head = Checkpoint(
            sequence=self._store.rotate(),
            policy=self._policy,
            settings=self._settings,
            core=self._core.snapshot(),
            now_ns=state.now_ns,
            trajectories=(),
            workers=tuple(state.workers.values()),
            used_below=state.used.below,
            used_others=tuple(sorted(state.used.others)),
            counts=state.counts.copy(),
        )
        return Draft(head, self.rollouts.begin_copy())

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint to the disk; any thread.

        Raises:
            Unavailable: the disk does not take it.
        """
        if self._store is not None:
            self._store.save(checkpoint)

    def save_now(self) -> None:
        """Write a checkpoint in this thread, if there is a store.

        Raises:
            Unavailable: the disk does not take it.
        """
        if self._store is None:
            return
        draft = self.begin_checkpoint()
        while not draft.advance():
            pass  # Nothing else is to be done in this thread.
        self.save(draft.checkpoint())

    def close(self) -> None:
        """Write nothing more."""
        self._watch.close()
        if self._store is not None:
            self._store.close()
