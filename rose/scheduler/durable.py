"""Rollouts with a journal, which continue after a restart."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from rose.clock import Clock
from rose.errors import InternalError, InvalidArgument
from rose.scheduler.arrivals import PreRegistrationBuffer, validated
from rose.scheduler.core import SchedulerCore
from rose.scheduler.driver_events import DriverStep, Entry, Registered
from rose.scheduler.driver_trajectory import SlowCopy
from rose.scheduler.rollouts import Rollouts
from rose.scheduler.settings import PlacementPolicy, SchedulerSettings
from rose.scheduler.state import Outcome, RolloutsState, SchedulerCheckpoint
from rose.scheduler.watching import DriverWatch, Watches
from rose.scheduler.worker import Worker, WorkerEvent, WorkerLost
from rose.units import NS_PER_S

if TYPE_CHECKING:
    from rose.scheduler.store_file import FileStore

# Seconds between checkpoints, so a restart replays a journal of at most about this length.
CHECKPOINT_S: Final = 30.0
# After a restart, workers have this many seconds to rejoin before they count as lost. Until then
# their turns wait, and so do turns that are placed on them in the meantime.
REJOIN_S: Final = 5.0
# Steps continue at this interval while every trajectory is in its environment, because grants may
# expire meanwhile. A much longer gap means that the process was suspended.
_IDLE_NS: Final = NS_PER_S // 2
# Latest time, in ns: far below 2^63, so that later deadlines do not overflow.
_NOW_MAX: Final = 1 << 60


class CoreTime:
    """A monotonic clock that also continues from the time of an earlier process.

    A rebooted machine counts from 0, a checkpoint may come from another machine, and clocks may go
    back. None of this may stop a scheduler (the core refuses to go back in time) or make it wait
    until the clock catches up: time continues at once from its last value.

    Args:
        clock: source of times.
        not_before_ns: last time of the earlier process.
    """

    def __init__(self, clock: Clock, *, not_before_ns: int = 0) -> None:
        self._clock = clock
        self._seen_ns = clock.now_ns()
        self._ahead_ns = max(0, not_before_ns - self._seen_ns)

    def now_ns(self) -> int:
        """Return the current time."""
        seen_ns = self._clock.now_ns()
        self._ahead_ns += max(0, self._seen_ns - seen_ns)
        self._seen_ns = seen_ns
        return min(seen_ns + self._ahead_ns, _NOW_MAX)


class Durable:
    """Steps rollouts; with a store, each step is journaled before its effects happen.

    One thread at a time, except for `save`. Methods that write raise Unavailable if the disk fails.
    """

    def __init__(
        self,
        settings: SchedulerSettings,
        policy: PlacementPolicy,
        clock: Clock,
        store: "FileStore | None",
        watches: Sequence[DriverWatch],
    ) -> None:
        self._settings = settings
        self._policy = policy
        self._clock = clock
        self._store = store
        self._watches = Watches(watches)
        self._time = CoreTime(clock)
        self._core = SchedulerCore(settings, policy)
        self._pre_registration = PreRegistrationBuffer()
        self.invalid_events = 0  # invalid worker events; they change nothing
        self._entries: list[Entry] = []  # received since the last step
        self._rejoin_ns = 0
        self._checkpoint_ns = 0
        self.rollouts = Rollouts(self._core, RolloutsState(), self._watches)

    # ---- start ----------------------------------------------------------------------------------

    def open(self) -> None:
        """Continue from the store, and begin a new journal.

        Raises:
            CorruptData: the store is damaged.
            InvalidArgument: the store was written with other settings.
            Unavailable: the store cannot be read or written.
        """
        if self._store is not None and (found := self._store.load()) is not None:
            self._restore(*found)
        self._time = CoreTime(self._clock, not_before_ns=self.rollouts.state.now_ns)
        now_ns = self._time.now_ns()
        self._rejoin_ns = now_ns + round(REJOIN_S * NS_PER_S)
        # Renewals that workers sent while no scheduler ran are lost, and workers do not know it.
        self._core.keep_grants(self._rejoin_ns)
        self.save_now()
        self._watches.show(lambda watch: watch.opened(self.rollouts.state))

    def _restore(self, checkpoint: SchedulerCheckpoint, steps: Sequence[DriverStep]) -> None:
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
            # The last step may have ended the earlier process, and must not end this one. It had
            # no effects yet, so it is left out.
            self._restore(checkpoint, steps[:-1])
        self.rollouts.refusals = []  # Workers that are absent cannot refuse a turn.
        self.rollouts.watches = self._watches

    def _check_settings(self, checkpoint: SchedulerCheckpoint) -> None:
        if checkpoint.policy is not self._policy:
            raise InvalidArgument(
                f"the checkpoint was written with the policy {checkpoint.policy.name}, not "
                f"{self._policy.name}: pass the same policy, or another store"
            )
        before, now = checkpoint.settings.values(), self._settings.values()
        for name in now:
            if before[name] != now[name]:
                raise InvalidArgument(
                    f"the checkpoint was written with {name}={before[name]}, not {now[name]}: "
                    "pass the same settings, or another store"
                )

    # ---- steps ----------------------------------------------------------------------------------

    def receive(self, event: WorkerEvent) -> None:
        """Accept a worker's event.

        Reports of a grant or version are kept until their worker is registered.
        """
        valid = validated(event)
        if valid is None:
            self.invalid_events += 1
            return
        is_kept = not self.rollouts.is_here(valid.worker) and self._pre_registration.keep(valid)
        # The loss of a worker of an earlier process ends its turns, too.
        is_absent = isinstance(valid, WorkerLost) and valid.worker in self.rollouts.absent()
        if not is_kept or is_absent:
            self._accept(valid)

    def _accept(self, event: WorkerEvent) -> None:
        if isinstance(event, WorkerLost):
            if self.rollouts.is_here(event.worker):
                self._pre_registration.lose(event.worker)
            self.rollouts.stop_turns(event.worker)
        self.rollouts.take(event)
        self._note(event)

    def take(self, entry: Entry, worker: Worker | None = None) -> None:
        """Accept an entry of a caller.

        Args:
            entry: request or report of the caller.
            worker: the worker to register, if `entry` is a `Registered`.

        Raises:
            InvalidArgument: the entry contradicts earlier ones; nothing has changed.
            Unavailable: the worker to register is lost already.
        """
        if isinstance(entry, WorkerLost):
            if self.rollouts.is_here(entry.worker):
                self.receive(entry)
            return
        if isinstance(entry, Registered) and worker is not None:
            self.rollouts.check_absent(entry.worker)
            kept = self._pre_registration.take(entry.worker)
            self.rollouts.register(entry, worker)
            self._note(entry)
            for event in kept:
                self.rollouts.take(event)
                self._note(event)
            return
        self.rollouts.take(entry)
        self._note(entry)

    def _note(self, entry: Entry) -> None:
        self._entries.append(entry)
        self._watches.show(lambda watch: watch.received(entry))

    def step(self) -> list[Outcome]:
        """Journal the received entries, and step the core with them.

        Raises:
            Unavailable: the journal cannot be written; nothing was done.
            InvalidArgument: the entries contradict each other.
            InternalError: a bug in the scheduler.
        """
        now_ns = self._time.now_ns()
        refusals, self.rollouts.refusals = self.rollouts.refusals, []
        for refusal in refusals:
            self.receive(refusal)
        if now_ns >= self._rejoin_ns:
            self._rejoin_ns = _NOW_MAX + 1  # Only workers of an earlier process can be absent.
            for number in self.rollouts.absent():
                why = f"it did not rejoin within {REJOIN_S} s"
                self._accept(WorkerLost(number, why, is_crash=False))
        entries, self._entries = self._entries, []
        if self._store is not None:
            self._store.append(DriverStep(now_ns, tuple(entries)))
        outcomes = self.rollouts.step(now_ns)
        self._watches.show(lambda watch: watch.stepped(outcomes))
        return outcomes

    def needs_step(self) -> bool:
        """Return True if there are entries to process, or time alone may change the state."""
        return (
            bool(self._entries)
            or bool(self.rollouts.refusals)
            or not self.rollouts.is_idle()
            or self._time.now_ns() - self.rollouts.state.now_ns >= _IDLE_NS
        )

    # ---- checkpoints ----------------------------------------------------------------------------

    def want_checkpoint(self) -> None:
        """Make the next checkpoint due."""
        if self._store is None:
            raise InvalidArgument("a scheduler without a store writes no checkpoint")
        self._checkpoint_ns = 0

    def is_checkpoint_due(self) -> bool:
        """Return True if the next checkpoint is due."""
        return self._store is not None and self._time.now_ns() >= self._checkpoint_ns

    def begin_checkpoint(self) -> tuple[SchedulerCheckpoint, SlowCopy]:
        """Start a checkpoint, and the journal of the steps after it. Steps continue meanwhile.

        Returns:
            The checkpoint without trajectories, and the object that is still to copy them.
        """
        if self._store is None or self._entries:
            raise InternalError("a checkpoint needs a store, and must begin between two steps")
        now_ns = self._time.now_ns()
        self._checkpoint_ns = now_ns + round(CHECKPOINT_S * NS_PER_S)
        head = SchedulerCheckpoint(
            sequence=self._store.rotate(),
            policy=self._policy,
            settings=self._settings,
            core=self._core.snapshot(),
            trajectories=(),
            rest=self.rollouts.state.copy(),
        )
        return head, self.rollouts.begin_copy()

    def save(self, head: SchedulerCheckpoint, copy: SlowCopy) -> None:
        """Write a checkpoint to disk, from any thread; the copy must be complete."""
        if self._store is not None:
            self._store.save(replace(head, trajectories=copy.whole()))

    def save_now(self) -> None:
        """Write a checkpoint in this thread, if there is a store."""
        if self._store is None:
            return
        head, copy = self.begin_checkpoint()
        while not copy.advance():
            pass  # This thread has nothing else to do.
        self.save(head, copy)

    def close(self) -> None:
        """Stop writing."""
        self._watches.show(lambda watch: watch.close())
        if self._store is not None:
            self._store.close()
