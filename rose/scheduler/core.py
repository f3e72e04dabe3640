"""Python's access to the scheduler's core."""

from collections.abc import Sequence
from typing import Final

from rose import _core
from rose.scheduler.events import Action, Event
from rose.scheduler.settings import PlacementPolicy, SchedulerSettings
from rose.scheduler.stats import JobStats, SchedulerStats, TrajectoryFate
from rose.scheduler.worker import WorkerKind

# The position of a member is its value in the enumeration of csrc/scheduler.
_POLICIES: Final = tuple(PlacementPolicy)


class SchedulerCore:
    """Decides which worker runs which turn: equal events at equal times give equal actions.

    It has no thread, clock or randomness of its own. One thread at a time.
    """

    def __init__(self, settings: SchedulerSettings, policy: PlacementPolicy) -> None:
        self._core = _core.SchedulerCore(policy=_POLICIES.index(policy), knobs=settings.knobs())

    @classmethod
    def restored(cls, image: bytes) -> "SchedulerCore":
        """Return a core that continues from `image` with the same actions.

        Raises:
            CorruptData: the bytes are not an image, or an image of another version of rose.
        """
        core = cls.__new__(cls)
        core._core = _core.SchedulerCore.restored(image)
        return core

    def snapshot(self) -> bytes:
        """Return the complete state: equal cores give equal bytes."""
        return self._core.snapshot()

    def step(self, events: Sequence[Event], now_ns: int) -> list[Action]:
        """Apply events in order and return the actions, in order.

        Call it after every event, and regularly without events: capacity grants, grace periods and
        stalls expire only in a step.

        Raises:
            InvalidArgument: the events contradict each other, a number is out of range, or time
                went backwards. Nothing has changed.
            InternalError: a bug in the scheduler.
        """
        return self._core.step(events, now_ns)

    def keep_grants(self, until_ns: int) -> None:
        """Let no grant expire before `until_ns`. Call this after a gap without renewals."""
        self._core.keep_grants(until_ns)

    @property
    def on_workers(self) -> int:
        """Number of turns that run on a worker or are being recalled from one."""
        return self._core.on_workers

    def turns_on(self, worker: int) -> int:
        """Return the number of turns that run on this worker or are being recalled from it."""
        return self._core.turns_on(worker)

    @property
    def is_idle(self) -> bool:
        """True if every trajectory is in its environment: then time changes only grants."""
        return self._core.is_idle

    @property
    def native(self) -> _core.SchedulerCore:
        """The core itself, for a C++ simulator that steps it without Python."""
        return self._core

    def stats(self) -> SchedulerStats:
        """Return the current state and all counters."""
        counted = self._core.stats()
        take, fates = counted.pop, TrajectoryFate
        return SchedulerStats(
            turns_by_kind={kind: take(f"turns_{kind.value}") for kind in WorkerKind},
            used_kv_tokens=take("used_tokens"),
            lengths_by_fate={fate: tuple(take(f"lengths_{fate.value}")) for fate in fates},
            jobs={number: JobStats(*fields) for number, fields in take("jobs").items()},
            **counted,
        )
