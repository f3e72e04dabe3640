"""A rollout loop whose thread is the test: time goes when the test says so.

Environments, tasks and the scheduler are the real ones.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from rose.environments import Environment, Step, Tokenizer, task
from rose.rl.flight import Flight
from rose.rl.loop import LoopSettings, News, RolloutLoop
from rose.rl.trajectory import Trajectory
from rose.scheduler import PlacementPolicy, SchedulerCore, SchedulerSettings
from rose.scheduler.events import WorkerJoined
from rose.scheduler.worker import WorkerKind
from rose.units import NS_PER_MS
from tests.rl.play import CONTEXT_MAX, GROUP_SIZE, RUN_SEED, TURN_MAX, sampling_seed
from tests.rl.saying_worker import SayingWorker

DEDICATED, BORROWED = WorkerKind.DEDICATED, WorkerKind.BORROWED
SCHEDULER = SchedulerSettings(
    batch_trajectories=1000,
    recall_grace_ms=60.0,
    retry_ms=80.0,
    attempts_max=1000,  # a trajectory that is dropped proves nothing about its tokens
    stall_ms=200.0,
    wait_max_ms=300.0,
)
LOOP = LoopSettings(
    in_flight=6,
    group_size=GROUP_SIZE,
    turn_tokens_max=TURN_MAX,
    context_tokens_max=CONTEXT_MAX,
    temperature=1.0,
)
TOOL_WAIT_S = 0.03
TICKS_MAX = 5000


@dataclass
class StoppedClock:
    now_ms: float = 1.0

    def now_ns(self) -> int:
        return round(self.now_ms * NS_PER_MS)

    def sleep(self, seconds: float) -> None:
        raise AssertionError("the loop's thread must not sleep")


def make_flight(number: int, group: int) -> Flight:
    drawn = task(RUN_SEED, group * GROUP_SIZE, group_size=GROUP_SIZE)
    flight = Flight(number, group, drawn.seed, sampling_seed(number), drawn.environment)
    flight.hear(Tokenizer().prompt(drawn.environment.reset(drawn.seed)))
    return flight


def joined(number: int, kind: WorkerKind, *, seats: int = 8) -> WorkerJoined:
    return WorkerJoined(number, kind, number, seats, 1000.0, 5.0, 1.0, 0)


class NotedEnvironment:
    """An environment that keeps what it answered."""

    def __init__(self, environment: Environment) -> None:
        self.name = environment.name
        self.steps: list[Step] = []
        self._environment = environment

    def step(self, said: str) -> Step:
        self.steps.append(self._environment.step(said))
        return self.steps[-1]


@dataclass
class Stage:
    policy: PlacementPolicy = PlacementPolicy.JOINT
    scheduler: dict[str, Any] = field(default_factory=dict)
    loop_settings: dict[str, Any] = field(default_factory=dict)
    wait_s: Callable[[int, int], float] = lambda _trajectory, _turn: TOOL_WAIT_S

    def __post_init__(self) -> None:
        self.clock = StoppedClock()
        self.core = SchedulerCore(replace(SCHEDULER, **self.scheduler), self.policy)
        self.finished: dict[int, Trajectory] = {}
        self.flights: list[Flight] = []
        self.workers: dict[int, SayingWorker] = {}
        self.news: list[News] = []
        self.loop = RolloutLoop(
            self.core,
            make_flight=self.make_flight,
            wait_s=self.wait_s,
            tokenizer=Tokenizer(),
            on_finished=self.finish,
            settings=replace(LOOP, **self.loop_settings),
            clock=self.clock,
        )

    def make_flight(self, number: int, group: int) -> Flight:
        flight = make_flight(number, group)
        flight.environment = NotedEnvironment(flight.environment)
        self.flights.append(flight)
        return flight

    def finish(self, trajectory: Trajectory) -> None:
        assert trajectory.number not in self.finished, "it was handed on twice"
        self.finished[trajectory.number] = trajectory

    def join(
        self, number: int = 0, kind: WorkerKind = DEDICATED, *, seats: int = 8, ttl_ms: float = 0.0
    ) -> SayingWorker:
        """Bring a worker whose news are heard at the next advance; it has no lease yet."""
        worker = SayingWorker(number, kind, self.news.append, ttl_ms=ttl_ms)
        self.workers[number] = worker
        self.loop.join(worker, joined(number, kind, seats=seats))
        return worker

    def advance(self, after_ms: float = 0.0) -> None:
        """Let time go, let the loop hear all news, and recount."""
        self.clock.now_ms += after_ms
        self.loop._advance([*self.joinings(), *self.take_news()])
        self.recount()

    def joinings(self) -> list[News]:
        return [] if self.loop._inbox.empty() else self.loop._gather()

    def take_news(self) -> list[News]:
        news = list(self.news)
        self.news.clear()
        return news

    def recount(self) -> None:
        """Hold what the loop counts against what the test saw and what the core says."""
        counts, stats = self.loop.counts(), self.core.stats()
        assert counts.lost == 0
        assert counts.started == len(self.flights)
        assert (counts.finished, counts.dropped) == (len(self.finished), stats.dropped)
        assert counts.in_flight == len(self.flights) - len(self.finished) - stats.dropped
        resumed = set().union(*(worker.has_resumed for worker in self.workers.values()))
        assert counts.resumed == len(resumed)

    def ticks(self, until: Callable[[], bool]) -> Iterator[None]:
        """Yield until it is so, but not for ever."""
        for _ in range(TICKS_MAX):
            if until():
                return
            yield
        raise AssertionError("it does not get there")

    def play_on(self, *, until: Callable[[], bool], tokens: int = 5) -> None:
        """Let every worker speak, tick after tick."""
        for _ in self.ticks(until):
            for worker in self.workers.values():
                for trajectory in list(worker.running):
                    worker.say(trajectory, tokens)
            self.advance(after_ms=5.0)
