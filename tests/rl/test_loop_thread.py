"""The thread of the rollout loop: it plays with workers that speak in their own, and it ends."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from rose.clock import BootClock
from rose.environments import Tokenizer
from rose.errors import DeadlineExceeded, InvalidArgument, Unavailable
from rose.rl import loop
from rose.rl.flight import Flight
from rose.rl.loop import RolloutLoop
from rose.rl.trajectory import Trajectory
from rose.scheduler import PlacementPolicy, SchedulerCore
from rose.scheduler.events import Consumed, VersionPublished
from rose.scheduler.worker import LeaseChanged
from tests.node.rig import no_thread_is_left, wait_for
from tests.rl.play import play
from tests.rl.saying_worker import SayingWorker
from tests.rl.stage import BORROWED, DEDICATED, LOOP, SCHEDULER, joined, make_flight

PACE_S = 0.001


class Play:
    """A loop that runs, and two workers."""

    def __init__(self, make: Callable[[int, int], Flight] = make_flight) -> None:
        self.finished: list[Trajectory] = []
        self.loop = RolloutLoop(
            SchedulerCore(SCHEDULER, PlacementPolicy.JOINT),
            make_flight=make,
            wait_s=lambda _trajectory, _turn: PACE_S,
            tokenizer=Tokenizer(),
            on_finished=self.finished.append,
            settings=LOOP,
            clock=BootClock(),
        )
        self.is_silent = False
        self.workers = [
            SayingWorker(number, kind, self.loop.tell)
            for number, kind in enumerate([DEDICATED, BORROWED])
        ]
        for worker in self.workers:
            self.loop.join(worker, joined(worker.number, worker.kind))
            worker.grant()

    def running(self) -> set[int]:
        return {trajectory for worker in self.workers for trajectory in worker.running}

    def speak(self, is_over: threading.Event) -> None:
        while not is_over.wait(PACE_S):
            for worker in self.workers:
                with worker.lock:
                    for trajectory in [] if self.is_silent else list(worker.running):
                        worker.say(trajectory, 2)


@contextmanager
def playing(**changes) -> Iterator[Play]:
    is_over = threading.Event()
    with no_thread_is_left():
        play_ = Play(**changes)
        speaking = threading.Thread(target=play_.speak, args=(is_over,))
        speaking.start()
        play_.loop.start()
        try:
            yield play_
        finally:
            play_.loop.stop()
            is_over.set()
            speaking.join()


def test_trajectories_are_those_of_a_plain_play_when_all_have_threads() -> None:
    with playing() as on:
        wait_for(lambda: len(on.finished) >= 12)
    for trajectory in on.finished:
        truth = play(trajectory.number, trajectory.group)
        assert (trajectory.tokens, trajectory.logprobs) == (truth.tokens, truth.logprobs)
        assert trajectory.reward == pytest.approx(truth.reward)
    counts = on.loop.counts()
    assert (counts.finished, counts.lost) == (len(on.finished), 0)
    # The loop may be stopped between the end of one and the start of the next.
    assert counts.started == counts.finished + counts.in_flight
    assert 0 < counts.in_flight <= LOOP.in_flight
    assert on.loop.error is None
    assert not on.loop.has_died


def test_stop_takes_every_turn_back_and_ends_the_thread() -> None:
    with playing() as on:
        on.is_silent = True
        wait_for(lambda: len(on.running()) == LOOP.in_flight)
        on.loop.stop()
        assert on.running() == set()
        assert not on.loop.has_died
        finished = len(on.finished)
        on.is_silent = False
        on.loop.tell(VersionPublished(1))  # Nobody listens.
    assert len(on.finished) == finished
    assert on.loop.counts().in_flight == LOOP.in_flight


@pytest.mark.parametrize("fault", [KeyError("turn"), Unavailable("its stream")])
def test_a_worker_that_cannot_stop_keeps_no_other_from_it(monkeypatch, fault) -> None:
    def fail(_trajectory: int) -> None:
        raise fault

    with playing() as on:
        on.is_silent = True
        wait_for(lambda: all(worker.running for worker in on.workers))
        monkeypatch.setattr(on.workers[0], "stop_turn", fail)
        on.loop.stop()
        assert not on.workers[1].running
        assert on.loop.error is None


def test_a_loop_that_does_not_end_is_not_called_stopped(monkeypatch) -> None:
    is_over = threading.Event()
    monkeypatch.setattr(loop, "_JOIN_S", 0.01)
    with playing() as on:
        monkeypatch.setattr(on.workers[0], "stop_turn", lambda _: is_over.wait())
        with pytest.raises(DeadlineExceeded, match="have not ended"):
            on.loop.stop()
        is_over.set()
        monkeypatch.undo()


@pytest.mark.parametrize("kv_tokens", [1e5, "many", None])
def test_what_no_count_fits_is_left_out(kv_tokens) -> None:
    with playing() as on:
        wait_for(lambda: on.finished)
        on.loop.tell(LeaseChanged(on.workers[1].number, 9, kv_tokens, 0.0))
        finished = len(on.finished)
        wait_for(lambda: len(on.finished) > finished + 4)
        assert not on.loop.has_died


def test_a_loop_that_was_never_started_can_be_stopped() -> None:
    with no_thread_is_left():
        Play().loop.stop()


def test_an_error_of_the_core_ends_the_loop_and_is_seen() -> None:
    with playing() as on:
        on.loop.tell(Consumed(-1))
        wait_for(lambda: on.loop.has_died)
        assert isinstance(on.loop.error, InvalidArgument)
        assert "trajectories" in str(on.loop.error)
        assert on.running() == set()
    assert on.loop.has_died
    assert on.loop.counts().lost == 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_fault_of_something_else_is_seen_as_the_loops_death() -> None:
    def make(number: int, group: int) -> Flight:
        if number > 2:
            raise KeyError(number)
        return make_flight(number, group)

    with playing(make=make) as on:
        wait_for(lambda: on.loop.has_died)
        assert on.loop.error is None
