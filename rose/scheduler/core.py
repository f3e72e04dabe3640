"""Python's access to the scheduler's core: dataclasses become rows of numbers for C++."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from rose import _core
from rose.errors import InvalidArgument
from rose.scheduler import events
from rose.scheduler.coerce import whole
from rose.scheduler.events import Action, Event
from rose.scheduler.settings import PlacementPolicy, SchedulerSettings
from rose.scheduler.worker import GrantChanged, TurnEnd, VersionCommitted, WorkerKind, WorkerLost

_Row = tuple[Any, ...]

# The position of a member is its value in the enumeration of csrc/scheduler.
_POLICIES: Final = tuple(PlacementPolicy)
_DROP_REASONS: Final = tuple(events.DropReason)
_KINDS: Final = {kind: code for code, kind in enumerate(WorkerKind)}
_ENDS: Final = {end: code for code, end in enumerate(TurnEnd)}
_TOKENS_UNKNOWN: Final = -1
_OWN_DEVICE: Final = -1
_time: Final = whole(-(1 << 63), (1 << 63) - 1)

# The code of an event is the position of its type in `Event` of csrc/scheduler/events.h.
_ROW_OF: Final[dict[type, Callable[[Any], _Row]]] = {
    events.WorkerJoined: lambda e: (
        *(0, e.worker, _KINDS[e.kind], e.seats, e.prefill_tokens_per_s),
        *(e.decode_step_ms, e.decode_ms_per_sequence, e.version, e.domain, e.job),
        *(_OWN_DEVICE if e.device is None else e.device, e.decode_ms_per_context_token),
    ),
    GrantChanged: lambda e: (1, e.worker, e.grant_epoch, e.kv_tokens, e.ttl_ms),
    WorkerLost: lambda e: (2, e.worker),
    events.VersionPublished: lambda e: (3, e.version, e.job),
    VersionCommitted: lambda e: (4, e.worker, e.version),
    events.TrajectoryCreated: lambda e: (5, e.trajectory, e.group, e.job),
    events.TurnReady: lambda e: (6, e.trajectory, e.turn, e.context_tokens, e.max_new_tokens),
    events.TurnProgress: lambda e: (
        *(7, e.trajectory, e.turn, e.worker, e.grant_epoch),
        *(e.first_token, e.tokens, e.version_min),
    ),
    events.TurnEnded: lambda e: (
        *(8, e.trajectory, e.turn, e.worker, e.grant_epoch, _ENDS[e.end]),
        _TOKENS_UNKNOWN if e.tokens is None else e.tokens,
    ),
    events.TrajectoryEnded: lambda e: (9, e.trajectory),
    events.Consumed: lambda e: (10, e.trajectories, e.job),
    events.JobJoined: lambda e: (11, e.job, e.batch_trajectories, e.max_staleness, e.weight),
}

# In the order of `Action` in csrc/scheduler/actions.h.
_ACTIONS: Final[tuple[Callable[..., Action], ...]] = (
    events.Admit,
    events.Start,
    events.Stop,
    events.Deliver,
    events.TurnDone,
    lambda trajectory, reason: events.Drop(trajectory, _DROP_REASONS[reason]),
)


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

    def step(self, news: Sequence[Event], now_ns: int) -> list[Action]:
        """Apply events in order and return the actions, in order.

        Call it after every event, and regularly without events: capacity grants, grace periods and
        stalls expire only in a step.

        Raises:
            InvalidArgument: the events contradict each other, a number is out of range, or time
                went backwards. Nothing has changed.
            InternalError: a bug in the scheduler.
        """
        rows = [_row_of(event) for event in news]
        actions = self._core.step(rows, _time("now_ns", now_ns))
        return [action_of(row) for row in actions]

    def keep_grants(self, until_ns: int) -> None:
        """Let no grant expire before `until_ns`. Call this after a gap without renewals."""
        self._core.keep_grants(_time("until_ns", until_ns))

    @property
    def native(self) -> _core.SchedulerCore:
        """The core itself, for a C++ simulator that steps it without Python."""
        return self._core

    def stats(self) -> events.SchedulerStats:
        """Return the current state and all counters."""
        counted = self._core.stats()
        take, fates = counted.pop, events.TrajectoryFate
        return events.SchedulerStats(
            turns_by_kind={kind: take(f"turns_{kind.value}") for kind in WorkerKind},
            used_kv_tokens=take("used_tokens"),
            lengths_by_fate={fate: tuple(take(f"lengths_{fate.value}")) for fate in fates},
            jobs={number: events.JobStats(*fields) for number, fields in take("jobs").items()},
            **counted,
        )


def action_of(row: Sequence[Any]) -> Action:
    """Decode a row of the core, which holds the code of an action and then the action's fields."""
    code, *fields = row
    action: Action = _ACTIONS[code](*fields)
    return action


def _row_of(event: Event) -> _Row:
    row_of = _ROW_OF.get(type(event))
    if row_of is None:
        raise InvalidArgument(f"unknown event {event!r}")
    try:
        return row_of(event)
    except (KeyError, TypeError) as error:
        raise InvalidArgument(f"{event!r} has an unknown kind or end") from error
