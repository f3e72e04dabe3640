"""A core with its clock, and short words for what it is told."""

from typing import Any

from rose.scheduler import PlacementPolicy
from rose.scheduler.core import SchedulerCore
from rose.scheduler.events import (
    Action,
    Event,
    GrantChanged,
    Start,
    Stop,
    TrajectoryCreated,
    TurnEnded,
    TurnProgress,
    TurnReady,
    WorkerJoined,
)
from rose.scheduler.worker import TurnEnd, WorkerKind
from rose.units import NS_PER_MS
from tests.scheduler.tuned import tuned

SETTINGS = tuned(
    batch_trajectories=100,
    recall_grace_ms=100.0,
    retry_ms=50.0,
    stall_ms=1000.0,
    wait_max_ms=5000.0,
    displaced_share=1.0,  # memory holds nobody back, but where a test is about that
    pace_rate=0.0,  # words that are told here take no time, which says nothing of a worker
)
DEDICATED, BORROWED = WorkerKind.DEDICATED, WorkerKind.BORROWED


class Rig:
    def __init__(self, policy: PlacementPolicy = PlacementPolicy.JOINT, **settings: Any) -> None:
        self.core = SchedulerCore(tuned(SETTINGS, **settings), policy)
        self.now_ms = 1.0

    def step(self, *events: Event, after_ms: float = 0.0) -> list[Action]:
        self.now_ms += after_ms
        return self.core.step(events, round(self.now_ms * NS_PER_MS))

    def join(
        self,
        number: int,
        kind: WorkerKind = DEDICATED,
        *,
        seats: int = 8,
        kv_tokens: int = 10_000,
        epoch: int = 1,
        ttl_ms: float = 0.0,
        version: int = 0,
        step_ms: float = 10.0,
        domain: int = 0,
        job: int = 0,
        device: int | None = None,
    ) -> list[Action]:
        """Bring a worker with a lease; `kv_tokens` 0 for one without."""
        joined = WorkerJoined(
            *(number, kind, domain, seats, 1000.0, step_ms, 1.0, version), job=job, device=device
        )
        lease = GrantChanged(number, epoch, kv_tokens, ttl_ms)
        return self.step(joined, *([lease] if kv_tokens else []))

    def ready(
        self,
        trajectory: int,
        *,
        turn: int = 0,
        context: int = 10,
        max_new: int = 20,
        job: int = 0,
    ) -> list[Action]:
        """Create a trajectory if its first turn comes, and let a turn want a worker."""
        if turn == 0:
            self.step(TrajectoryCreated(trajectory, 0, job))
        return self.step(TurnReady(trajectory, turn, context, max_new))

    def run(self, trajectory: int, **turn: int) -> Start:
        """Return where the turn was started at once."""
        (start,) = self.ready(trajectory, **turn)
        assert isinstance(start, Start)
        return start


def progress(start: Start, first: int, tokens: int, version: int = 0) -> TurnProgress:
    return TurnProgress(
        *(
            start.trajectory,
            start.turn,
            start.worker,
            start.grant_epoch,
            first,
            tokens,
            version,
            version,
        )
    )


def ended(start: Start, end: TurnEnd, tokens: int | None = None) -> TurnEnded:
    return TurnEnded(
        start.trajectory, start.turn, start.worker, start.grant_epoch, end, tokens=tokens
    )


def stop_of(start: Start) -> Stop:
    return Stop(start.trajectory, start.worker, start.grant_epoch)
