"""Rollouts in their thread: trajectories are those of an uninterrupted run, and the thread ends."""

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from rose.clock import BootClock
from rose.errors import InvalidArgument
from rose.scheduler import Capabilities, SchedulerSettings
from rose.scheduler.events import Consumed, VersionPublished
from rose.scheduler.worker import TurnEnd, WorkerKind, WorkerLost
from rose_lab.demo.environments import GridWorld, Observed, Task, task
from rose_lab.demo.rl import rollouts as rollouts_module
from rose_lab.demo.rl.rollouts import Groups, RolloutThread
from rose_lab.demo.rl.settings import RolloutLimits
from rose_lab.demo.rl.trajectory import Trajectory
from tests.lab.demo.rl.play import CONTEXT_MAX, GROUP_SIZE, RUN_SEED, TURN_MAX, play
from tests.lab.demo.rl.scripted_worker import ScriptedWorker
from tests.node.rig import no_thread_is_left
from tests.scheduler.tuned import tuned
from tests.waiting import wait_for

DEDICATED, BORROWED = WorkerKind.DEDICATED, WorkerKind.BORROWED
PACE_S = 0.001
LOOP = RolloutLimits(
    in_flight=6,
    group_size=GROUP_SIZE,
    turn_tokens_max=TURN_MAX,
    context_tokens_max=CONTEXT_MAX,
)
SCHEDULER = tuned(
    batch_trajectories=1000,
    recall_grace_ms=60.0,
    retry_ms=1.0,
    attempts_max=1000,  # a trajectory that is dropped proves nothing about its tokens
)
CAN = Capabilities(seats=8, prefill_tokens_per_s=1000.0, decode_step_ms=5.0)


class Play:
    """Rollouts, and workers that speak in a thread of their own."""

    def __init__(
        self,
        *,
        wait_s: Callable[[int, int], float] = lambda _trajectory, _turn: PACE_S,
        scheduler: SchedulerSettings = SCHEDULER,
        **changes,
    ) -> None:
        self.finished: list[Trajectory] = []
        self.rollouts = RolloutThread(
            replace(LOOP, **changes),
            scheduler=scheduler,
            seed=RUN_SEED,
            wait_s=wait_s,
            on_finished=self.finished.append,
            clock=BootClock(),
        )
        self.is_silent = False
        self.fails: set[int] = set()  # no worker can run turns of these
        self.workers: list[ScriptedWorker] = []

    def bring(
        self, number: int = 0, kind: WorkerKind = DEDICATED, *, epoch: int = 0
    ) -> ScriptedWorker:
        worker = ScriptedWorker(number, kind, self.rollouts.receive)
        worker.epoch = epoch
        self.rollouts.join(worker, structs.replace(CAN, domain=number))
        worker.grant()
        self.workers.append(worker)
        return worker

    def running(self) -> set[int]:
        return {trajectory for worker in self.workers for trajectory in worker.running}

    def speak(self, is_over: threading.Event) -> None:
        while not is_over.wait(PACE_S):
            for worker in list(self.workers):
                with worker.lock:
                    for trajectory in [] if self.is_silent else list(worker.running):
                        if trajectory in self.fails:
                            worker.leave(trajectory, TurnEnd.FAILED)
                        else:
                            worker.output(trajectory, 2)


@contextmanager
def playing(**changes) -> Iterator[Play]:
    is_over = threading.Event()
    with no_thread_is_left():
        on = Play(**changes)
        speaking = threading.Thread(target=on.speak, args=(is_over,))
        speaking.start()
        on.rollouts.start()
        try:
            yield on
        finally:
            on.rollouts.stop()
            is_over.set()
            speaking.join()


def assert_played(got: Trajectory, *, context_max: int = CONTEXT_MAX) -> None:
    """Hold every token, logprob, version and mask against an uninterrupted run; and the score."""
    truth = play(got.number, got.group, context_max=context_max)
    assert replace(got, reward=0.0) == replace(truth, reward=0.0)
    assert got.reward == pytest.approx(truth.reward)


# ---- trajectories --------------------------------------------------------------------------------


def test_trajectories_are_those_of_a_plain_play_though_workers_come_and_go() -> None:
    with playing() as on:
        borrowed = on.bring(0, BORROWED)
        lives = itertools.count()
        while len(on.finished) < 20 or on.rollouts.counts().resumed < 5:
            life = next(lives)
            number = 1 + life % 2  # It comes back under a number that is known.
            other = on.bring(number, epoch=life)
            wait_for(lambda other=other: other.running, timeout_s=20.0)
            with borrowed.lock:
                borrowed.revoke()
                borrowed.grant()
            with other.lock:
                on.workers.remove(other)
                other.is_up = False
                on.rollouts.receive(WorkerLost(number, "killed"))
            time.sleep(PACE_S)
    for trajectory in on.finished:
        assert_played(trajectory)
    assert on.rollouts.counts().dropped == 0
    tokens: Counter[int] = Counter()
    turns: Counter[tuple[int, int]] = Counter()
    for part in on.rollouts.history.turns():
        tokens[part.trajectory] += part.tokens
        turns[part.trajectory, part.turn] += 1
        assert part.worker == (DEDICATED if part.number else BORROWED).value
        assert part.is_resumed <= (turns[part.trajectory, part.turn] > 1)
        assert part.start_s <= part.end_s
    for trajectory in on.finished:
        assert tokens[trajectory.number] == trajectory.generated_tokens
        assert all(turns[trajectory.number, turn] for turn in range(trajectory.turns))
    assert max(turns.values()) > 1


class TimedEnvironment:
    """Notes when each step was over, and whether it used a tool."""

    def __init__(self, environment: GridWorld) -> None:
        self.name = environment.name
        self.steps: list[tuple[float, bool]] = []
        self.reset = environment.reset
        self._step = environment.step

    def step(self, said: str) -> Observed:
        step = self._step(said)
        self.steps.append((time.monotonic(), step.tool is not None and not step.is_over))
        return step


class TimedWorker(ScriptedWorker):
    def start_turn(self, request) -> None:
        self.began.setdefault((request.trajectory, request.turn), time.monotonic())
        super().start_turn(request)


def test_each_turn_waits_for_the_tool_before_it_and_only_for_that(monkeypatch) -> None:
    environments: list[TimedEnvironment] = []
    asked: list[tuple[int, int]] = []

    def draw_timed(*which: int, group_size: int) -> Task:
        drawn = task(*which, group_size=group_size)
        environments.append(TimedEnvironment(drawn.environment))
        return replace(drawn, environment=environments[-1])

    def wait_s(trajectory: int, turn: int) -> float:
        asked.append((trajectory, turn))
        return 0.02

    monkeypatch.setattr(rollouts_module, "task", draw_timed)
    with playing(wait_s=wait_s) as on:
        worker = TimedWorker(0, DEDICATED, on.rollouts.receive)
        worker.began = {}
        on.workers.append(worker)
        on.rollouts.join(worker, CAN)
        worker.grant()
        wait_for(lambda: len(on.finished) >= 12)
    waits = set()
    for (trajectory, turn), began_s in worker.began.items():
        if turn:
            ended_s, has_tool = environments[trajectory].steps[turn - 1]
            assert began_s - ended_s >= (0.02 if has_tool else 0.0)
            waits |= {(trajectory, turn - 1)} if has_tool else set()
    assert waits <= set(asked)
    assert 0 < len(asked) < sum(trajectory.turns - 1 for trajectory in on.finished)


def test_a_trajectory_ends_before_its_context_is_too_long() -> None:
    context_max = 170
    with playing(context_tokens_max=context_max) as on:
        on.bring()
        wait_for(lambda: len(on.finished) >= 20)
    for trajectory in on.finished:
        assert_played(trajectory, context_max=context_max)
        assert len(trajectory.tokens) <= context_max
    short = [one for one in on.finished if one.turns < play(one.number, one.group).turns]
    assert short, "some of them would have gone on"


@pytest.mark.parametrize(("room", "most"), [(9, 5), (3, 3), (0, 1)])
def test_the_first_turn_too_ends_where_the_context_may(room, most) -> None:
    prompt = play(0, 0).is_generated.index(True)
    with playing(in_flight=1, turn_tokens_max=5, context_tokens_max=prompt + room) as on:
        worker = on.bring()
        wait_for(lambda: worker.asked)
    assert worker.asked[0].max_new_tokens == most


def test_groups_become_complete_though_trajectories_are_dropped() -> None:
    with playing(scheduler=tuned(SCHEDULER, attempts_max=2)) as on:
        on.fails = {1, 5}
        on.bring()
        wait_for(lambda: len(on.finished) >= 15)
    assert on.rollouts.counts().dropped == 2
    assert not {1, 5} & {one.number for one in on.finished}
    members = Counter(one.group for one in on.finished)
    assert [members[group] for group in range(3)] == [GROUP_SIZE] * 3
    assert max(members.values()) == GROUP_SIZE
    for trajectory in on.finished:
        assert_played(trajectory)
    assert on.rollouts.counts().lost == 0


def test_no_more_begin_than_the_trainer_will_use_soon_enough() -> None:
    with playing(scheduler=replace(SCHEDULER, max_staleness=0, batch_trajectories=2)) as on:
        worker = on.bring()
        wait_for(lambda: len(on.finished) == 2)
        time.sleep(0.1)
        assert {request.trajectory for request in worker.asked} == {0, 1}
        on.rollouts.send(Consumed(2))
        wait_for(lambda: len(on.finished) == 4)
        assert {request.trajectory for request in worker.asked} == {0, 1, 2, 3}
        wait_for(lambda: on.rollouts.counts().in_flight == LOOP.in_flight)
        on.rollouts.send(VersionPublished(1))
        wait_for(lambda: on.rollouts.scheduler.counts().job(0).published == 1)


# ---- the thread ----------------------------------------------------------------------------------


def test_stop_takes_every_turn_back_and_ends_the_thread() -> None:
    with playing() as on:
        on.bring()
        on.is_silent = True
        wait_for(lambda: len(on.running()) == LOOP.in_flight)
        on.rollouts.stop()
        assert on.running() == set()
        assert on.rollouts.error is None
        finished = len(on.finished)
        on.is_silent = False
        on.rollouts.send(VersionPublished(1))  # Nobody listens.
        on.rollouts.join(ScriptedWorker(1, BORROWED, on.rollouts.receive), CAN)
    assert len(on.finished) == finished
    assert on.rollouts.counts().in_flight == LOOP.in_flight


def test_an_error_of_the_scheduler_ends_the_thread_and_is_seen() -> None:
    with playing() as on:
        on.bring()
        on.rollouts.send(Consumed(-1))
        wait_for(lambda: on.rollouts.error)
        assert isinstance(on.rollouts.error, InvalidArgument)
        assert "trajectories" in str(on.rollouts.error)
        assert on.running() == set()
    assert on.rollouts.counts().lost == 0


@given(st.integers(1, 4), st.lists(st.integers(0, 5), max_size=60))
def test_a_group_is_full_before_a_later_one_begins(size: int, drops: list[int]) -> None:
    groups, members = Groups(size), Counter[int]()
    for drop in drops:
        group = groups.take()
        assert all(members[earlier] == size for earlier in range(group))
        members[group] += 1
        assert members[group] <= size
        if drop == 0:
            members[group] -= 1
            groups.give_back(group)
