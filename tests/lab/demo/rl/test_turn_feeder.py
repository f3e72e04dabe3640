"""Turns of trajectories on one engine: they go on, they wait, they end with the engine."""

import time
from collections.abc import Callable, Iterator

import pytest

from rose.clock import BootClock
from rose.engines.transformers import Engine
from rose.scheduler.worker import WorkerKind
from rose_lab.demo.rl.settings import RolloutLimits
from rose_lab.demo.workload import TurnFeeder
from tests.engines.policies import engine_of, policy
from tests.waiting import wait_for

LOOP = RolloutLimits(in_flight=12, group_size=2, turn_tokens_max=8, context_tokens_max=96)


class Fed:
    def __init__(self, *, wait_s: Callable[[int, int], float] = lambda _number, _turn: 0.0) -> None:
        self.engine: Engine = engine_of(policy(seed=3))
        self.feeder = TurnFeeder(
            self.engine,
            WorkerKind.DEDICATED,
            rollouts=LOOP,
            wait_s=wait_s,
            seats=4,
            seed=5,
            clock=BootClock(),
        )

    def close(self) -> None:
        self.feeder.stop()
        self.engine.stop()


@pytest.fixture
def fed() -> Iterator[Fed]:
    made = Fed()
    made.feeder.start()
    yield made
    made.close()


def test_trajectories_continue_turn_by_turn_and_none_is_lost(fed: Fed) -> None:
    fed.feeder.resume()
    wait_for(lambda: fed.feeder._rollouts.counts().finished >= 15)
    fed.close()
    counts = fed.feeder._rollouts.counts()
    assert (counts.dropped, counts.lost) == (0, 0)
    assert counts.in_flight >= LOOP.in_flight - 2
    # More than one turn of each, none longer than it may be.
    assert counts.finished * LOOP.turn_tokens_max < fed.feeder.tokens


def test_a_paused_engine_says_nothing_and_keeps_its_turns(fed: Fed) -> None:
    for _ in range(3):
        fed.feeder.resume()
        before = fed.feeder.tokens
        wait_for(lambda before=before: fed.feeder.tokens > before + 40)
        fed.feeder.pause()
        said = fed.feeder.tokens
        time.sleep(0.2)
        assert fed.feeder.tokens == said
    assert fed.feeder._rollouts.history.resumed == set()
    assert fed.feeder.failures == []


def test_a_trajectory_whose_tool_takes_for_ever_keeps_no_other_from_its_turns() -> None:
    fed = Fed(wait_s=lambda number, _turn: 1e6 if number < LOOP.in_flight // 2 else 0.0)
    fed.feeder.start()
    fed.feeder.resume()
    wait_for(lambda: fed.feeder._rollouts.counts().finished >= 10)
    fed.close()
    assert fed.feeder.failures == []


def test_an_engine_that_dies_is_a_failure(fed: Fed, monkeypatch: pytest.MonkeyPatch) -> None:
    fed.feeder.resume()
    wait_for(lambda: fed.feeder.tokens)
    assert fed.feeder.failures == []

    def fail(*_arguments: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(fed.engine.processor.model_runner, "compute_batch", fail)
    wait_for(lambda: fed.feeder.failures)
    assert any("planted" in one for one in fed.feeder.failures)
