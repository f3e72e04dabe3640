"""A driver and a pool of workers that the core can be driven with, on a network that misbehaves.

Workers say true tokens: the one at a position of a turn is a function of both. Messages to the core
are late, doubled, out of order or lost; those from the core to one worker come late and in order,
as a connection brings them.
"""

import random
from collections import deque
from dataclasses import dataclass, field

from rose.scheduler import PlacementPolicy
from rose.scheduler.events import (
    Action,
    Admit,
    Consumed,
    Deliver,
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
from rose.scheduler.worker import TurnEnd, WorkerKind
from rose.units import NS_PER_MS
from tests.scheduler.audit import Audit
from tests.scheduler.tuned import tuned

SETTINGS = tuned(
    max_staleness=1,
    batch_trajectories=6,
    recall_grace_ms=60.0,
    retry_ms=80.0,
    attempts_max=1000,  # a trajectory that is dropped proves nothing about its tokens
    losses_max=1000,
    stall_ms=200.0,
    wait_max_ms=300.0,
    cache_wait_ms=500.0,
    hazard_prior_s=2.0,
    hold_min_ms=20.0,
    hold_max_ms=200.0,
    flap_window_ms=400.0,
    exposure_max_s=0.12,
    urgent_share_max=0.5,
    burst_prefill_tokens=60,
    fair_lead_tokens=40,
    reserve_ahead_tokens=3,
)
TTL_MS = 250.0
MAX_NEW = 24


def token(trajectory: int, turn: int, position: int) -> int:
    return hash((trajectory, turn, position)) % 1000


def length(trajectory: int, turn: int) -> int:
    """Return how many tokens a turn has to say; sometimes all that it may."""
    return 1 + (trajectory * 7 + turn * 5) % MAX_NEW


def turns_of(trajectory: int) -> int:
    return 1 + trajectory % 3


@dataclass
class Faults:
    """Odds of each fault, per message or per worker and tick."""

    delay: float = 0.3
    double: float = 0.1
    lose: float = 0.03
    revoke: float = 0.03
    resize: float = 0.05
    interrupt: float = 0.03
    fail: float = 0.05
    freeze: float = 0.02
    kill: float = 0.01
    skip_renewal: float = 0.05
    revoke_domain: float = 0.01
    flap: float = 0.3  # of those revoked, how many are granted again at once
    stand_still: float = 0.2  # the clock, per tick
    jump: float = 0.005
    pause: float = 0.01
    resume: float = 0.3


NO_FAULTS = Faults(**dict.fromkeys(vars(Faults()), 0.0))


@dataclass
class Running:
    turn: int
    epoch: int
    said: int  # tokens of the turn so far


@dataclass
class PoolWorker:
    number: int
    kind: WorkerKind
    seats: int
    kv_max: int
    domain: int = 0
    job: int = 0
    device: int | None = None
    kv_tokens: int = 0
    epoch: int = 0
    is_up: bool = False
    version: int = 0
    frozen_until: int = 0
    running: dict[int, Running] = field(default_factory=dict)
    inbox: deque[tuple[int, Start | Stop]] = field(default_factory=deque)


class World:
    """Time goes in ticks of a few milliseconds; each delivers what is due and steps the core."""

    def __init__(
        self, seed: int, policy: PlacementPolicy, *, trajectories: int, jobs: int | None = None
    ) -> None:
        self.rng = random.Random(seed)
        self.faults = Faults()
        self.audit = Audit(SETTINGS, policy, lambda k, turn, n: n == length(k, turn))
        self.now_ms = 1
        self.order = 0
        self.is_paused = False
        self.mail: list[tuple[int, int, Event]] = []  # to the core: due, order, what
        self.values: dict[tuple[int, int], list[int]] = {}  # delivered, by trajectory and turn
        self.done: set[int] = set()
        self.jobs = jobs or self.rng.randint(1, 3)
        self.consumed = dict.fromkeys(range(self.jobs), 0)
        self.published = dict.fromkeys(range(self.jobs), 0)
        self.pool: list[PoolWorker] = []
        for job in range(self.jobs):
            self.add_workers(job, shares=self.jobs > 1 and self.rng.random() < 0.7)
        for job in range(1, self.jobs):
            weight = self.rng.choice([0.5, 1.0, 3.0])
            self.tell(JobJoined(job, self.rng.randint(3, 8), self.rng.randint(0, 2), weight))
        self.trajectories = trajectories
        for trajectory in range(trajectories):
            self.tell(
                TrajectoryCreated(trajectory, group=trajectory // 4, job=self.job_of(trajectory))
            )
        for worker in self.pool:
            self.join(worker)

    def add_workers(self, job: int, *, shares: bool) -> None:
        """Add a dedicated worker and two borrowed ones, which may share devices with other jobs."""
        kinds = [WorkerKind.DEDICATED, WorkerKind.BORROWED, WorkerKind.BORROWED]
        for place, kind in enumerate(kinds):
            is_shared = shares and kind is WorkerKind.BORROWED
            self.pool.append(
                PoolWorker(
                    *(len(self.pool), kind, 2 + place, 160 + 90 * place, place, job),
                    device=place if is_shared else None,
                )
            )

    def job_of(self, trajectory: int) -> int:
        return trajectory % self.jobs

    # ---- messages

    def tell(self, event: Event, after_ms: int = 0) -> None:
        """Bring an event of the driver: in order, once."""
        self.order += 1
        self.mail.append((self.now_ms + after_ms, self.order, event))

    def report(self, event: Event) -> None:
        """Bring an event of a worker over the network."""
        if self.rng.random() < self.faults.lose:
            return
        for _ in range(2 if self.rng.random() < self.faults.double else 1):
            late = self.rng.random() < self.faults.delay
            self.tell(event, self.rng.randint(1, 120) if late else 0)

    def report_grant(self, worker: PoolWorker) -> None:
        ttl_ms = TTL_MS if worker.kind is WorkerKind.BORROWED else 0.0
        self.report(GrantChanged(worker.number, worker.epoch, worker.kv_tokens, ttl_ms))

    # ---- workers

    def join(self, worker: PoolWorker) -> None:
        worker.is_up = True
        self.tell(
            WorkerJoined(
                *(worker.number, worker.kind, worker.domain, worker.seats, 1000.0, 5.0, 1.0),
                *(worker.version, worker.job, worker.device),
            )
        )
        self.grant(worker)

    def grant(self, worker: PoolWorker) -> None:
        worker.epoch += 1
        worker.kv_tokens = worker.kv_max
        self.report_grant(worker)

    def leave(self, worker: PoolWorker, trajectory: int, end: TurnEnd) -> None:
        run = worker.running.pop(trajectory)
        self.report(TurnEnded(trajectory, run.turn, worker.number, run.epoch, end, tokens=run.said))

    def revoke(self, worker: PoolWorker) -> None:
        for trajectory in list(worker.running):
            self.leave(worker, trajectory, TurnEnd.INTERRUPTED)
        worker.kv_tokens = 0
        self.report_grant(worker)

    def revoke_domain(self, domain: int) -> None:
        for worker in self.pool:
            if worker.domain == domain and worker.is_up and worker.kv_tokens:
                self.revoke(worker)

    def kill(self, worker: PoolWorker) -> None:
        worker.is_up, worker.kv_tokens = False, 0
        worker.running.clear()
        worker.inbox.clear()
        self.tell(WorkerLost(worker.number))

    def shrink(self, worker: PoolWorker) -> None:
        worker.kv_tokens = self.rng.randint(1, worker.kv_max)
        while self.held(worker) > worker.kv_tokens:
            self.leave(worker, next(reversed(worker.running)), TurnEnd.INTERRUPTED)
        self.report_grant(worker)

    def take_orders(self, worker: PoolWorker) -> None:
        while worker.inbox and worker.inbox[0][0] <= self.now_ms:
            _, order = worker.inbox.popleft()
            if isinstance(order, Stop):
                run = worker.running.get(order.trajectory)
                if run is not None and run.epoch == order.grant_epoch:
                    self.leave(worker, order.trajectory, TurnEnd.INTERRUPTED)
                continue
            self.take_turn(worker, order)

    def take_turn(self, worker: PoolWorker, order: Start) -> None:
        assert order.trajectory not in worker.running, "it was not stopped before"
        run = Running(order.turn, order.grant_epoch, order.first_token)
        worker.running[order.trajectory] = run
        is_bad = order.grant_epoch != worker.epoch
        if is_bad or self.rng.random() < self.faults.fail:
            self.leave(worker, order.trajectory, TurnEnd.FAILED)
            return
        if self.held(worker) > worker.kv_tokens:
            self.leave(worker, order.trajectory, TurnEnd.INTERRUPTED)
            return
        assert len(worker.running) <= worker.seats

    def held(self, worker: PoolWorker) -> int:
        """Return the tokens of context that a worker's turns have: what they said is part of it."""
        running = worker.running.items()
        return sum(self.context(trajectory, run.turn) + run.said for trajectory, run in running)

    def generate(self, worker: PoolWorker) -> None:
        for trajectory, run in list(worker.running.items()):
            left = length(trajectory, run.turn) - run.said
            news = min(left, self.rng.randint(0, 4))
            if self.held(worker) + news > worker.kv_tokens:  # a Stop for another is under way
                self.leave(worker, trajectory, TurnEnd.INTERRUPTED)
                continue
            if news:
                self.report(
                    TurnProgress(
                        *(trajectory, run.turn, worker.number, run.epoch, run.said, news),
                        version_min=worker.version,
                        version_max=worker.version,
                    )
                )
                run.said += news
            if news == left:
                self.leave(worker, trajectory, TurnEnd.FINISHED)

    def live(self, worker: PoolWorker) -> None:
        """Pass one tick in the life of a worker."""
        odds, faults = self.rng.random, self.faults
        if not worker.is_up:
            if odds() < 0.1:
                self.join(worker)
            return
        if odds() < faults.kill:
            self.kill(worker)
            return
        if odds() < faults.freeze:
            worker.frozen_until = self.now_ms + self.rng.randint(50, 600)
        if self.now_ms < worker.frozen_until:
            return
        published = self.published[worker.job]
        if worker.version < published and odds() < 0.1:
            worker.version = published
            self.report(VersionCommitted(worker.number, worker.version))
        self.take_orders(worker)
        if worker.kv_tokens == 0:
            if odds() < 0.1:
                self.grant(worker)
            return
        if worker.kind is WorkerKind.BORROWED:
            self.live_on_loan(worker)
        self.generate(worker)

    def live_on_loan(self, worker: PoolWorker) -> None:
        odds, faults = self.rng.random, self.faults
        if odds() < faults.revoke:
            self.revoke(worker)
            if odds() < faults.flap:
                self.grant(worker)
        elif odds() < faults.resize:
            self.shrink(worker)
        elif odds() < faults.interrupt and worker.running:
            self.leave(worker, self.rng.choice(list(worker.running)), TurnEnd.INTERRUPTED)
        elif odds() >= faults.skip_renewal:
            self.report_grant(worker)

    # ---- the driver

    def context(self, trajectory: int, turn: int) -> int:
        return 10 + sum(length(trajectory, earlier) + 6 for earlier in range(turn))

    def ready(self, trajectory: int, turn: int) -> None:
        # Some turns wait for the newest weights.
        least = self.published[self.job_of(trajectory)] if trajectory % 4 == 0 else 0
        limits = MAX_NEW, least
        event = TurnReady(trajectory, turn, self.context(trajectory, turn), *limits)
        self.tell(event, self.rng.randint(0, 60))

    def carry_out(self, actions: list[Action], events: list[Event]) -> None:
        for action in actions:
            match action:
                case Admit():
                    self.ready(action.trajectory, 0)
                case Start() | Stop():
                    worker = self.pool[action.worker]
                    if worker.is_up:
                        last = worker.inbox[-1][0] if worker.inbox else 0
                        due = max(last, self.now_ms + self.rng.randint(0, 15))
                        worker.inbox.append((due, action))
                case Deliver():
                    self.take_tokens(action, events[action.event])
                case TurnDone():
                    self.go_on(action)

    def take_tokens(self, action: Deliver, event: Event) -> None:
        assert isinstance(event, TurnProgress)
        said = [
            token(event.trajectory, event.turn, event.first_token + place)
            for place in range(event.tokens)
        ]
        kept = self.values.setdefault((action.trajectory, action.turn), [])
        kept += said[action.skip : action.skip + action.tokens]

    def go_on(self, action: TurnDone) -> None:
        trajectory, turn = action.trajectory, action.turn
        said = self.values.pop((trajectory, turn), [])
        assert said == [token(trajectory, turn, place) for place in range(len(said))]
        assert len(said) == length(trajectory, turn)
        if turn + 1 < turns_of(trajectory):
            self.ready(trajectory, turn + 1)
        else:
            assert trajectory not in self.done
            self.done.add(trajectory)
            self.tell(TrajectoryEnded(trajectory), 1)

    def train(self) -> None:
        for job in range(self.jobs):
            seen = self.audit.core.stats().jobs.get(job)
            if seen is not None:
                self.train_one(job, seen.done)

    def train_one(self, job: int, ended: int) -> None:
        batch = (
            self.audit.jobs[job].batch if job in self.audit.jobs else SETTINGS.batch_trajectories
        )
        is_last = ended == len(range(job, self.trajectories, self.jobs))
        left = ended - self.consumed[job]
        if left >= batch or (is_last and left):
            taken = min(batch, left)
            self.consumed[job] += taken
            self.published[job] += 1
            self.tell(Consumed(taken, job))
            self.tell(VersionPublished(self.published[job], job))

    # ---- time

    def tick(self) -> None:
        odds, faults = self.rng.random, self.faults
        if odds() >= faults.stand_still:
            self.now_ms += self.rng.randint(1, 15)
        if odds() < faults.jump:
            self.now_ms += self.rng.randint(100, 2000)
        if not self.is_paused and odds() < faults.pause:
            self.is_paused = True
            self.tell(Paused(odds() < 0.5))
        elif self.is_paused and odds() < faults.resume:
            self.resume()
        if odds() < faults.revoke_domain:
            self.revoke_domain(self.rng.randint(1, 2))
        for worker in self.pool:
            self.live(worker)
        due = sorted(mail for mail in self.mail if mail[0] <= self.now_ms)
        self.mail = [mail for mail in self.mail if mail[0] > self.now_ms]
        events = [event for *_, event in due]
        actions = self.audit.step(events, self.now_ms * NS_PER_MS)
        self.carry_out(actions, events)
        if not self.mail or self.rng.random() < 0.2:
            self.train()

    def resume(self) -> None:
        self.is_paused = False
        self.tell(Resumed())

    def heal(self) -> None:
        """End all faults: every worker is lost and comes back, as after an outage."""
        self.faults = NO_FAULTS
        self.resume()
        for worker in self.pool:
            if worker.is_up:
                self.kill(worker)
            worker.frozen_until = 0
            worker.version = self.published[worker.job]
