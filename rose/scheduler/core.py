"""The scheduler's core for Python: dataclasses on this side, rows of numbers on the other."""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Final

from rose import _core
from rose.errors import InvalidArgument
from rose.scheduler.coerce import whole
from rose.scheduler.events import (
    Action,
    Admit,
    Consumed,
    Deliver,
    Drop,
    DropReason,
    Event,
    JobJoined,
    JobStats,
    SchedulerStats,
    Start,
    Stop,
    TrajectoryCreated,
    TrajectoryEnded,
    TrajectoryFate,
    TurnDone,
    TurnEnded,
    TurnProgress,
    TurnReady,
    VersionPublished,
    WorkerJoined,
)
from rose.scheduler.settings import PlacementPolicy, SchedulerSettings
from rose.scheduler.worker import LeaseChanged, TurnEnd, VersionCommitted, WorkerKind, WorkerLost

_Row = tuple[Any, ...]

# The places of their members are the values of the enumerations in csrc/scheduler.
_POLICIES: Final = tuple(PlacementPolicy)
_DROP_REASONS: Final = tuple(DropReason)
_KINDS: Final = {kind: code for code, kind in enumerate(WorkerKind)}
_ENDS: Final = {end: code for code, end in enumerate(TurnEnd)}
_TOKENS_UNKNOWN: Final = -1
_OWN_DEVICE: Final = -1
_time: Final = whole(-(1 << 63), (1 << 63) - 1)

_progress: Final = attrgetter(
    "trajectory", "turn", "worker", "lease_epoch", "first_token", "tokens", "version_min"
)

# The code of an event is the place of its type in `Event` of csrc/scheduler/events.h.
_ROW_OF: Final[dict[type, Callable[[Any], _Row]]] = {
    WorkerJoined: lambda e: (
        *(0, e.worker, _KINDS[e.kind], e.seats, e.prefill_tokens_per_s),
        *(e.decode_step_ms, e.decode_ms_per_sequence, e.version, e.domain, e.job),
        *(_OWN_DEVICE if e.device is None else e.device, e.decode_ms_per_context_token),
    ),
    LeaseChanged: lambda e: (1, e.worker, e.lease_epoch, e.kv_tokens, e.ttl_ms),
    WorkerLost: lambda e: (2, e.worker),
    VersionPublished: lambda e: (3, e.version, e.job),
    VersionCommitted: lambda e: (4, e.worker, e.version),
    TrajectoryCreated: lambda e: (5, e.trajectory, e.group, e.job),
    TurnReady: lambda e: (6, e.trajectory, e.turn, e.context_tokens, e.max_new_tokens),
    TurnProgress: lambda e: (7, *_progress(e)),
    TurnEnded: lambda e: (
        *(8, e.trajectory, e.turn, e.worker, e.lease_epoch, _ENDS[e.end]),
        _TOKENS_UNKNOWN if e.tokens is None else e.tokens,
    ),
    TrajectoryEnded: lambda e: (9, e.trajectory),
    Consumed: lambda e: (10, e.trajectories, e.job),
    JobJoined: lambda e: (11, e.job, e.batch_trajectories, e.max_staleness, e.weight),
}

# In the order of `Action` in csrc/scheduler/actions.h.
_ACTIONS: Final[tuple[Callable[..., Action], ...]] = (
    Admit,
    Start,
    Stop,
    Deliver,
    TurnDone,
    lambda trajectory, reason: Drop(trajectory, _DROP_REASONS[reason]),
)


class SchedulerCore:
    """Decides which worker runs which turn: the same events at the same times, the same actions.

    It has no thread, clock or randomness of its own. One thread at a time.
    """

    def __init__(self, settings: SchedulerSettings, policy: PlacementPolicy) -> None:
        self._core = _core.SchedulerCore(policy=_POLICIES.index(policy), knobs=settings.knobs())

    @classmethod
    def restored(cls, image: bytes) -> "SchedulerCore":
        """Return a core that goes on where the one that made `image` was: the same actions.

        Raises:
            CorruptData: the bytes are no image, or one of another version of rose.
        """
        core = cls.__new__(cls)
        core._core = _core.SchedulerCore.restored(image)
        return core

    def snapshot(self) -> bytes:
        """Return all that decides what the core does next: equal cores give equal bytes."""
        return self._core.snapshot()

    def step(self, events: Sequence[Event], now_ns: int) -> list[Action]:
        """Apply events in their order and return what is to be done, in its order.

        Call it when something happened, and now and then when nothing did: leases, grace periods
        and stalls run out only in a step.

        Raises:
            InvalidArgument: the front contradicts itself, a number is out of range, or time went
                backwards. Nothing has changed.
            InternalError: a bug in the scheduler.
        """
        rows = [_row_of(event) for event in events]
        actions = self._core.step(rows, _time("now_ns", now_ns))
        return [action_of(row) for row in actions]

    def keep_leases(self, until_ns: int) -> None:
        """Let no lease run out before then: for a time in which nobody heard those who renewed."""
        self._core.keep_leases(_time("until_ns", until_ns))

    @property
    def native(self) -> _core.SchedulerCore:
        """The core itself, for a simulator in C++ that steps it without Python."""
        return self._core

    def stats(self) -> SchedulerStats:
        """Return what is now, and what was counted."""
        counted = self._core.stats()
        turns_by_kind = {
            WorkerKind.DEDICATED: counted.pop("turns_dedicated"),
            WorkerKind.BORROWED: counted.pop("turns_borrowed"),
        }
        used_kv_tokens = counted.pop("used_tokens")
        lengths = {fate: tuple(counted.pop(f"lengths_{fate.value}")) for fate in TrajectoryFate}
        jobs = {number: JobStats(*fields) for number, fields in counted.pop("jobs").items()}
        return SchedulerStats(
            turns_by_kind=turns_by_kind,
            used_kv_tokens=used_kv_tokens,
            lengths_by_fate=lengths,
            jobs=jobs,
            **counted,
        )


def action_of(row: Sequence[Any]) -> Action:
    """Return the action of a row from the core: its code, then its fields."""
    code, *fields = row
    action: Action = _ACTIONS[code](*fields)
    return action


def _row_of(event: Event) -> _Row:
    row_of = _ROW_OF.get(type(event))
    if row_of is None:
        raise InvalidArgument(f"the scheduler knows no event {event!r}")
    try:
        return row_of(event)
    except (KeyError, TypeError) as error:
        raise InvalidArgument(f"{event!r} has a kind or an end that there is not") from error
