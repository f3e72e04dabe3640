"""What must be true after every step, from what the core was told and what it wanted done."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rose.scheduler import PlacementPolicy, SchedulerSettings
from rose.scheduler.core import SchedulerCore
from rose.scheduler.events import (
    Action,
    Admit,
    Consumed,
    Deliver,
    Drop,
    Event,
    GrantChanged,
    JobJoined,
    Paused,
    Resumed,
    Start,
    Stop,
    TrajectoryCreated,
    TrajectoryEnded,
    TurnDone,
    TurnEnded,
    TurnProgress,
    TurnReady,
    VersionCommitted,
    VersionPublished,
    WorkerJoined,
    WorkerLost,
)
from rose.scheduler.worker import WorkerKind
from rose.units import NS_PER_MS
from tests.scheduler.tuned import values_of


@dataclass
class WorkerSeen:
    kind: WorkerKind
    domain: int
    job: int
    device: int | None
    seats: int
    prefill_tokens_per_s: float
    version: int
    epoch: int = 0
    kv_tokens: int = 0
    deadline_ns: float = 0.0
    is_live: bool = False


@dataclass
class TurnSeen:
    job: int = 0
    turn: int = -1
    tries: int = 0
    ran: set[tuple[int, int]] = field(default_factory=set)  # where, and under which lease
    waits_from_ns: int = 0  # or later
    restarting: int = 0  # tokens of its prompt, if it ran before and shows no progress yet
    context_tokens: int = 0
    max_new_tokens: int = 0
    delivered: int = 0
    version_min: int = 0
    accepted: range = range(0)  # versions that may give its tokens
    is_under_way: bool = False
    on: tuple[int, int] | None = None  # worker, epoch: started there and not known to have left


@dataclass
class JobSeen:
    batch: int
    max_staleness: int
    published: int = 0
    admitted: set[int] = field(default_factory=set)
    dropped: set[int] = field(default_factory=set)
    consumed: int = 0
    # The oldest version of each that is done and not consumed.
    ended: deque[int] = field(default_factory=deque)


@dataclass
class Audit:
    """Steps a core and checks what it answers. `is_finished(trajectory, turn, tokens)`."""

    settings: SchedulerSettings
    policy: PlacementPolicy
    is_finished: Callable[[int, int, int], bool]
    history: list[tuple[list[Event], int, list[Action]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.values = values_of(self.settings)
        self.core = SchedulerCore(self.settings, self.policy)
        self.workers: dict[int, WorkerSeen] = {}
        self.epochs: dict[int, int] = {}
        self.turns: dict[int, TurnSeen] = {}
        self.jobs: dict[int, JobSeen] = {}
        self.job_of: dict[int, int] = {}
        self.events = 0
        self.stale = 0
        self.is_paused = False

    def step(self, events: Sequence[Event], now_ns: int) -> list[Action]:
        actions = self.core.step(events, now_ns)
        self.history.append((list(events), now_ns, actions))
        self.events += len(events)
        for event in events:
            self._receive(event, now_ns)
        for number, worker in self.workers.items():
            if worker.is_live and worker.deadline_ns <= now_ns:
                self._end_grant(number, now_ns)
        for action in actions:
            self._see(action, events, now_ns)
        self._check_capacity()
        self._check_stats()
        return actions

    def replay(self) -> None:
        """Check that the same events at the same times give the same actions."""
        again = SchedulerCore(self.settings, self.policy)
        for events, now_ns, actions in self.history:
            assert again.step(events, now_ns) == actions
        assert again.stats() == self.core.stats()

    # ---- what the core was told

    def _receive(self, event: Event, now_ns: int) -> None:
        match event:
            case WorkerJoined():
                self.workers[event.worker] = WorkerSeen(
                    *(WorkerKind[event.kind], event.domain, event.job, event.device, event.seats),
                    *(event.prefill_tokens_per_s, event.version),
                )
            case WorkerLost() if event.worker in self.workers:
                self._end_grant(event.worker, now_ns)
                del self.workers[event.worker]
            case GrantChanged() if event.worker in self.workers:
                self._receive_grant(event, now_ns)
            case VersionPublished():
                job = self._job(event.job)
                job.published = max(job.published, event.version)
            case JobJoined():
                job = self._job(event.job)
                job.batch, job.max_staleness = event.batch_trajectories, event.max_staleness
            case TrajectoryCreated():
                self.job_of[event.trajectory] = event.job
            case VersionCommitted() if event.worker in self.workers:
                self.workers[event.worker].version = event.version
            case TurnReady():
                seen = self.turns[event.trajectory]
                assert seen.on is None
                seen.turn, seen.delivered, seen.is_under_way = event.turn, 0, True
                seen.tries, seen.waits_from_ns = 0, now_ns
                seen.accepted = range(event.version_min, event.version_max + 1)
                seen.context_tokens, seen.max_new_tokens = (
                    event.context_tokens,
                    event.max_new_tokens,
                )
            case TurnProgress():
                seen = self.turns.get(event.trajectory, TurnSeen())
                if seen.turn == event.turn and seen.on == (event.worker, event.grant_epoch):
                    seen.restarting = 0
            case TurnEnded():
                seen = self.turns.get(event.trajectory, TurnSeen())
                if seen.turn == event.turn and seen.on == (event.worker, event.grant_epoch):
                    seen.on, seen.waits_from_ns = None, now_ns
            case Paused():
                self.is_paused = True
            case Resumed():
                self.is_paused = False
            case Consumed():
                job = self._job(event.job)
                job.consumed += event.trajectories
                for _ in range(event.trajectories):
                    self.stale += job.published - job.ended.popleft() > job.max_staleness
            case TrajectoryEnded():
                seen = self.turns[event.trajectory]
                if not seen.is_under_way:
                    self._job(seen.job).ended.append(seen.version_min)

    def _receive_grant(self, event: GrantChanged, now_ns: int) -> None:
        worker, last = self.workers[event.worker], self.epochs.get(event.worker, -1)
        if event.grant_epoch > last:
            self._end_grant(event.worker, now_ns)
        elif not (worker.is_live and event.grant_epoch == worker.epoch):
            return
        self.epochs[event.worker] = worker.epoch = event.grant_epoch
        worker.kv_tokens, worker.is_live = event.kv_tokens, True
        ttl_ns = event.ttl_ms * NS_PER_MS
        worker.deadline_ns = now_ns + ttl_ns if ttl_ns else float("inf")
        if event.kv_tokens == 0:
            self._end_grant(event.worker, now_ns)

    def _end_grant(self, number: int, now_ns: int) -> None:
        worker = self.workers[number]
        worker.is_live = False
        for seen in self.turns.values():
            if seen.on == (number, worker.epoch):
                seen.on, seen.waits_from_ns = None, now_ns

    # ---- what it wants done

    def _see(self, action: Action, events: Sequence[Event], now_ns: int) -> None:
        match action:
            case Admit():
                number = self.job_of[action.trajectory]
                job = self._job(number)
                assert action.trajectory not in job.admitted
                job.admitted.add(action.trajectory)
                self.turns[action.trajectory] = TurnSeen(number, version_min=job.published)
                ahead_max = (job.max_staleness + 1) * job.batch
                assert len(job.admitted - job.dropped) - job.consumed <= ahead_max
            case Start():
                self._see_start(action, now_ns)
            case Stop():
                seen = self.turns[action.trajectory]
                if seen.on == (action.worker, action.grant_epoch):
                    seen.on, seen.waits_from_ns = None, now_ns
            case Deliver():
                self._see_deliver(action, events)
            case TurnDone():
                seen = self.turns[action.trajectory]
                assert seen.turn == action.turn
                assert seen.on is None
                seen.is_under_way = False
                assert self.is_finished(action.trajectory, action.turn, seen.delivered)
            case Drop():
                self._job(self.job_of[action.trajectory]).dropped.add(action.trajectory)

    def _see_start(self, action: Start, now_ns: int) -> None:
        seen, worker = self.turns[action.trajectory], self.workers[action.worker]
        assert not self.is_paused
        assert worker.version in seen.accepted
        assert worker.is_live
        assert now_ns < worker.deadline_ns
        assert action.grant_epoch == worker.epoch
        published = self._job(seen.job).published
        assert worker.job == seen.job
        assert worker.version >= published - self.values.worker_lag_max
        assert seen.on is None, f"{action} while it runs on {seen.on}"
        # Alone it fits to its last word.
        assert seen.context_tokens + seen.max_new_tokens <= worker.kv_tokens
        assert action.turn == seen.turn
        assert action.first_token == seen.delivered
        assert action.max_new_tokens == seen.max_new_tokens - seen.delivered > 0
        # Whoever has waited for too long is free of the caps.
        has_starved = now_ns - seen.waits_from_ns >= self.values.wait_max_ms * NS_PER_MS
        if not has_starved:
            self._check_exposure(seen, worker)
        self._check_pace(seen, action.worker, has_starved=has_starved)
        seen.on = (action.worker, action.grant_epoch)
        seen.ran.add(seen.on)
        seen.tries += 1

    def _see_deliver(self, action: Deliver, events: Sequence[Event]) -> None:
        seen, event = self.turns[action.trajectory], events[action.event]
        assert isinstance(event, TurnProgress)
        assert (event.trajectory, event.turn) == (action.trajectory, action.turn)
        assert action.turn == seen.turn
        assert action.tokens > 0
        assert 0 <= action.skip <= event.tokens - action.tokens
        assert event.first_token + action.skip == seen.delivered
        seen.delivered += action.tokens
        assert event.version_min in seen.accepted
        assert event.version_max in seen.accepted
        seen.version_min = min(seen.version_min, event.version_min)
        assert seen.delivered <= seen.max_new_tokens

    def _job(self, number: int) -> JobSeen:
        default = JobSeen(self.settings.batch_trajectories, self.settings.max_staleness)
        return self.jobs.setdefault(number, default)

    def _check_exposure(self, turn: TurnSeen, worker: WorkerSeen) -> None:
        """Check the cap of a borrowed worker's domain, as it is before the turn starts there."""
        survivors = sum(
            other.prefill_tokens_per_s
            for other in self.workers.values()
            if other.is_live and other.job == turn.job and other.domain != worker.domain
        )
        there = sum(
            other.context_tokens + other.delivered
            for other in self.turns.values()
            if other.on is not None
            and other.job == turn.job
            and self.workers[other.on[0]].domain == worker.domain
        )
        if worker.kind is WorkerKind.DEDICATED or not survivors or not there:
            return
        tokens = there + turn.context_tokens + turn.delivered
        assert tokens <= self.values.exposure_max_s * survivors

    def _check_pace(self, turn: TurnSeen, number: int, *, has_starved: bool) -> None:
        """Check that prompts that come back do so a few at a time, caches aside."""
        worker = self.workers[number]
        turn.restarting = 0
        if turn.tries == 0 or (number, worker.epoch) in turn.ran:
            return
        prompt = turn.context_tokens + turn.delivered
        under_way = sum(
            other.restarting
            for other in self.turns.values()
            if other.on is not None and self._device(other.on[0]) == self._device(number)
        )
        most = self.values.burst_prefill_tokens
        assert has_starved or under_way == 0 or under_way + prompt <= most
        turn.restarting = prompt

    def _device(self, number: int) -> tuple[str, int]:
        device = self.workers[number].device
        return ("worker", number) if device is None else ("device", device)

    # ---- what must hold at the end of a step

    def _check_capacity(self) -> None:
        used: dict[tuple[str, int], list[int]] = {}
        for seen in self.turns.values():
            if seen.on is not None:
                tokens = seen.context_tokens + seen.delivered
                used.setdefault(self._device(seen.on[0]), []).append(tokens)
        for number, worker in self.workers.items():  # each says what its device has
            tokens_each = used.get(self._device(number), [])
            if worker.is_live:
                assert len(tokens_each) <= worker.seats
                assert sum(tokens_each) <= worker.kv_tokens

    def _check_stats(self) -> None:
        stats = self.core.stats()
        assert stats.running == sum(seen.on is not None for seen in self.turns.values())
        assert stats.stale == self.stale
        assert stats.admitted == sum(len(job.admitted) for job in self.jobs.values())
        assert stats.dropped == sum(len(job.dropped) for job in self.jobs.values())
        assert set(stats.used_kv_tokens) == set(self.workers)
