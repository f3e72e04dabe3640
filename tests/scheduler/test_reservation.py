"""Reserving what turns are likely to say, against all that they may: the same pool, both ways."""

import random
from dataclasses import dataclass, field

from rose.scheduler import PlacementPolicy
from rose.scheduler.core import SchedulerCore
from rose.scheduler.events import (
    Admit,
    Event,
    Start,
    Stop,
    TrajectoryCreated,
    TrajectoryEnded,
    TurnDone,
    TurnEnded,
    TurnProgress,
    TurnReady,
    WorkerJoined,
)
from rose.scheduler.worker import LeaseChanged, TurnEnd, WorkerKind
from rose.units import NS_PER_MS
from tests.scheduler.tuned import tuned

TRAJECTORIES = 96
CHUNK = 4  # tokens that are reported together
CONTEXT, MAX_NEW = 300, 4000
KV_TOKENS = 16_000  # three turns that say all that they may
STEP_MS, MS_PER_SEQUENCE = 20.0, 0.3


def heavy(rng: random.Random) -> int:
    """Return a length with a mean of 300 and a tail in which a few say all that they may."""
    return min(MAX_NEW, int(100 * rng.random() ** (-1 / 1.5)) + 1)


@dataclass
class Engine:
    """One worker: a token for each turn in each step, told by the chunk; prompts are free."""

    reserve_quantile: float
    now_ms: float = 1.0
    held_max: int = 0
    said: dict[int, int] = field(default_factory=dict)
    news: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        rng = random.Random(5)
        self.lengths = [heavy(rng) for _ in range(TRAJECTORIES)]
        settings = tuned(batch_trajectories=1000, reserve_quantile=self.reserve_quantile)
        self.core = SchedulerCore(settings, PlacementPolicy.JOINT)
        joined = WorkerJoined(
            *(0, WorkerKind.DEDICATED, 0, 64, 8000.0, STEP_MS, MS_PER_SEQUENCE, 0)
        )
        self.news += [joined, LeaseChanged(0, 1, KV_TOKENS, 0.0)]
        self.news += [TrajectoryCreated(number, number // 8) for number in range(TRAJECTORIES)]

    def step(self) -> None:
        self.now_ms += CHUNK * (STEP_MS + MS_PER_SEQUENCE * len(self.said))
        for number in list(self.said):
            said = self.said[number]
            news = min(CHUNK, self.lengths[number] - said)
            self.said[number] += news
            self.news.append(TurnProgress(number, 0, 0, 1, said, news, 0))
            if said + news == self.lengths[number]:
                self.leave(number, TurnEnd.FINISHED)
        events, self.news = self.news, []
        for action in self.core.step(events, round(self.now_ms * NS_PER_MS)):
            match action:
                case Admit():
                    self.news.append(TurnReady(action.trajectory, 0, CONTEXT, MAX_NEW))
                case Start():
                    self.said[action.trajectory] = action.first_token
                case Stop() if action.trajectory in self.said:
                    self.leave(action.trajectory, TurnEnd.INTERRUPTED)
                case TurnDone():
                    self.news.append(TrajectoryEnded(action.trajectory))
        self.held_max = max(self.held_max, sum(CONTEXT + said for said in self.said.values()))

    def leave(self, number: int, end: TurnEnd) -> None:
        self.news.append(TurnEnded(number, 0, 0, 1, end, self.said.pop(number)))

    def run(self) -> float:
        """Return when all are done, in milliseconds."""
        while self.core.stats().done < TRAJECTORIES:
            assert self.now_ms < 1e7
            self.step()
        return self.now_ms


def test_likely_reservations_take_half_the_time_and_hold_no_more_than_there_is() -> None:
    likely, all_of_it = Engine(0.9), Engine(1.0)
    assert likely.run() < 0.5 * all_of_it.run()
    assert all_of_it.held_max <= KV_TOKENS
    assert KV_TOKENS / 4 < likely.held_max <= KV_TOKENS
    stats = likely.core.stats()
    assert stats.outgrown > 0
    assert stats.tokens_ignored == 0
    assert stats.tokens_delivered == sum(likely.lengths)
