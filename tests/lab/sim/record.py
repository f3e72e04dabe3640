"""Input and output of the scheduler in a simulation, in the types of production."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rose.scheduler.core import action_of
from rose.scheduler.events import (
    Action,
    Consumed,
    Event,
    JobJoined,
    TrajectoryCreated,
    TrajectoryEnded,
    TurnEnded,
    TurnProgress,
    TurnReady,
    VersionPublished,
    WorkerJoined,
)
from rose.scheduler.worker import GrantChanged, TurnEnd, VersionCommitted, WorkerKind, WorkerLost
from rose_lab.sim.cluster.check_world import check_world
from rose_lab.sim.cluster.simulate import DEFAULT, SimOptions, native_world, new_core, outcome_of
from rose_lab.sim.cluster.world import ClusterOutcome, ClusterWorld

_KINDS: Final = tuple(WorkerKind)
_ENDS: Final = tuple(TurnEnd)


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One step of the scheduler: with the same steps before it, the same events give the same.

    Args:
        now_ns: when.
        events: what it was told.
        actions: what it wanted done.
    """

    now_ns: int
    events: Sequence[Event]
    actions: Sequence[Action]


def record_cluster(
    world: ClusterWorld, options: SimOptions = DEFAULT
) -> tuple[ClusterOutcome, list[RecordedStep]]:
    """Run a world as `simulate_cluster` does, and keep all input and output of the scheduler.

    Raises:
        InvalidArgument: as `simulate_cluster`.
        InternalError: as `simulate_cluster`.
    """
    check_world(world)
    native = native_world(world, options, is_logged=True)
    found = native.run(new_core(world).native, options.on_progress)
    steps = [
        RecordedStep(
            now_ns,
            [_EVENTS[code](*fields) for code, *fields in events],
            [action_of(row) for row in actions],
        )
        for now_ns, events, actions in found["log"]
    ]
    return outcome_of(found), steps


def _joined(*row: Any) -> WorkerJoined:
    worker, kind, seats, prefill, *more = row
    step_ms, sequence_ms, version, domain, job, device, context_ms = more
    return WorkerJoined(
        worker=worker,
        kind=_KINDS[kind],
        domain=domain,
        seats=seats,
        prefill_tokens_per_s=prefill,
        decode_step_ms=step_ms,
        decode_ms_per_sequence=sequence_ms,
        version=version,
        job=job,
        device=None if device < 0 else device,
        decode_ms_per_context_token=context_ms,
    )


def _ended(*row: Any) -> TurnEnded:
    trajectory, turn, worker, grant_epoch, end, tokens = row
    return TurnEnded(
        trajectory=trajectory,
        turn=turn,
        worker=worker,
        grant_epoch=grant_epoch,
        end=_ENDS[end],
        tokens=None if tokens < 0 else tokens,
    )


# In the order of `Event` in csrc/scheduler.
_EVENTS: Final[tuple[Callable[..., Event], ...]] = (
    _joined,
    GrantChanged,
    lambda worker: WorkerLost(worker, ""),
    VersionPublished,
    lambda worker, version: VersionCommitted(worker, version, is_match=True, pause_ms=0.0),
    TrajectoryCreated,
    TurnReady,
    TurnProgress,
    _ended,
    TrajectoryEnded,
    Consumed,
    JobJoined,
)
