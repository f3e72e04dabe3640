"""Every finished trajectory reaches the trainer, in order, whatever becomes of trainers."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.demo.rl import handoff as handoff_module
from rose.demo.rl.handoff import Handoff
from rose.demo.rl.messages import SUBMIT_MAX, Reply, Submitted, TrainerStatus
from rose.demo.rl.trajectory import NOT_GENERATED, Trajectory
from rose.errors import DeadlineExceeded, InvalidArgument, Unavailable
from tests.node.rig import no_thread_is_left
from tests.waiting import LONG_S, wait_for


@pytest.fixture(autouse=True, scope="module")
def _again_soon() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(handoff_module, "_EVERY_S", 0.001)
        yield


def one(number: int) -> Trajectory:
    return Trajectory(
        number, 0, 5, "grid", (2, 65, 3, 1), (False,) * 3 + (True,), (0.0, 0.0, 0.0, -1.0),
        (NOT_GENERATED,) * 3 + (0,), 0.0, 1,
    )  # fmt: skip


class Trainer:
    """Answers what is sent as the next of `answers` says, and the rest by taking all.

    Args:
        answers: how many of a batch it has room for; or an error. An error that `takes` is what a
            caller sees whose answer was lost on the way.
        refuses: numbers that it never takes.
    """

    def __init__(
        self, answers: Sequence[int | Exception | None] = (), refuses: frozenset[int] = frozenset()
    ) -> None:
        self.answers = list(answers)
        self.refuses = refuses
        self.arrived: list[int] = []  # in the order of being taken
        self.batches: list[list[int]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.is_asked = threading.Event()

    def submit(self, trajectories: Sequence[Trajectory]) -> Reply:
        if not trajectories:
            return Reply(Submitted(), TrainerStatus())
        self.is_asked.set()
        assert self.gate.wait(LONG_S)
        numbers = [trajectory.number for trajectory in trajectories]
        assert len(numbers) <= SUBMIT_MAX
        self.batches.append(numbers)
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Unavailable | InvalidArgument):
            raise answer
        known = [number for number in numbers if number in self.arrived]
        refused = {
            number: f"{number} is none of ours" for number in numbers if number in self.refuses
        }
        news = [number for number in numbers if number not in {*self.arrived, *refused}]
        room = len(news) if answer is None or isinstance(answer, Exception) else answer
        self.arrived += news[:room]
        if isinstance(answer, Exception):
            raise answer
        submitted = Submitted(tuple(news[:room]), tuple(known), tuple(news[room:]), refused)
        return Reply(submitted, TrainerStatus())


@contextmanager
def handing(kept: int = 4096, told: list[str] | None = None) -> Iterator[Handoff]:
    told = [] if told is None else told
    with no_thread_is_left():
        handoff = Handoff(kept=kept, tell=print, on_refused=told.append)
        handoff.start()
        try:
            yield handoff
        finally:
            handoff.stop()


ANSWERS = st.one_of(
    st.none(),
    st.integers(0, 5),
    st.builds(Unavailable, st.just("it is gone")),
    st.builds(DeadlineExceeded, st.just("it took all and said so too late")),
)


@given(st.lists(ANSWERS, max_size=8), st.integers(0, 150))
def test_all_arrive_once_and_in_order_whatever_the_trainer_answers(answers, count: int) -> None:
    trainer = Trainer(answers)
    with handing() as handoff:
        for number in range(count // 2):
            handoff.put(one(number))
        handoff.follow(trainer.submit)
        for number in range(count // 2, count):
            handoff.put(one(number))
        wait_for(lambda: handoff.waiting == 0)
    assert trainer.arrived == list(range(count))
    assert handoff.error is None


def test_nothing_is_sent_while_there_is_no_trainer() -> None:
    first, second = Trainer(), Trainer()
    with handing() as handoff:
        handoff.follow(first.submit)
        handoff.put(one(0))
        wait_for(lambda: handoff.waiting == 0)
        handoff.follow(None)
        handoff.put(one(1))
        assert handoff.waiting == 2  # What the dead one may have forgotten waits as well.
        handoff.follow(second.submit)
        wait_for(lambda: handoff.waiting == 0)
    assert (first.arrived, second.arrived) == ([0], [0, 1])


def test_what_the_next_trainer_gets_again_comes_before_what_no_trainer_had() -> None:
    first, second = Trainer([1] + [0] * 100_000), Trainer()
    with handing() as handoff:
        for number in range(3):
            handoff.put(one(number))
        handoff.follow(first.submit)
        wait_for(lambda: len(first.batches) > 2)
        assert handoff.waiting == 2
        handoff.follow(second.submit)
        wait_for(lambda: handoff.waiting == 0)
    assert (first.arrived, second.arrived) == ([0], [0, 1, 2])


@given(st.lists(st.tuples(st.integers(0, 12), st.lists(ANSWERS, max_size=3)), max_size=4))
def test_every_incarnation_gets_all_that_was_ever_put_in_order(lives) -> None:
    count = 0
    with handing() as handoff:
        for more, answers in lives:
            trainer = Trainer(answers)
            handoff.follow(trainer.submit)
            for number in range(count, count + more):
                handoff.put(one(number))
            count += more
            wait_for(lambda: handoff.waiting == 0)
            assert trainer.arrived == list(range(count))
            handoff.follow(None)
            assert handoff.waiting == count


def test_an_answer_of_a_trainer_that_is_gone_counts_for_nothing() -> None:
    old, new = Trainer(), Trainer()
    old.gate.clear()
    with handing() as handoff:
        handoff.follow(old.submit)
        handoff.put(one(0))
        assert old.is_asked.wait(LONG_S)
        handoff.follow(new.submit)
        old.gate.set()  # It says that it took it, and is dead.
        wait_for(lambda: handoff.waiting == 0)
    assert (old.arrived, new.arrived) == ([0], [0])


def test_only_so_many_are_kept_as_can_be_lost() -> None:
    first, second = Trainer(), Trainer()
    with handing(kept=3) as handoff:
        handoff.follow(first.submit)
        for number in range(10):
            handoff.put(one(number))
        wait_for(lambda: handoff.waiting == 0)
        handoff.follow(second.submit)
        wait_for(lambda: handoff.waiting == 0)
    assert second.arrived == [7, 8, 9]


def test_stop_sends_what_is_left_first() -> None:
    trainer = Trainer()
    trainer.gate.clear()
    with handing() as handoff:
        handoff.follow(trainer.submit)
        handoff.put(one(0))
        assert trainer.is_asked.wait(LONG_S)
        for number in range(1, 3 * SUBMIT_MAX):
            handoff.put(one(number))
        stopping = threading.Thread(target=handoff.stop)
        stopping.start()
        trainer.gate.set()
        stopping.join()
        assert handoff.waiting == 0
    assert trainer.arrived == list(range(3 * SUBMIT_MAX))


def test_stop_does_not_wait_for_a_trainer_that_there_is_not() -> None:
    with handing() as handoff:
        handoff.put(one(0))
    assert handoff.waiting == 1
    Handoff(kept=1, tell=print, on_refused=print).stop()  # Nor for a thread that never was.


@pytest.mark.parametrize("answer", [0, Unavailable("gone")], ids=["no room", "gone"])
def test_stop_does_not_wait_for_a_trainer_that_takes_nothing(answer) -> None:
    trainer = Trainer([answer] * 100_000)
    with handing() as handoff:
        handoff.follow(trainer.submit)
        handoff.put(one(0))
        wait_for(lambda: len(trainer.batches) > 2)
    assert (trainer.arrived, handoff.waiting, handoff.error) == ([], 1, None)


def test_a_trajectory_that_is_refused_is_let_go_and_the_others_are_not() -> None:
    told: list[str] = []
    first, second = Trainer(refuses={1, 4}), Trainer()
    with handing(told=told) as handoff:
        for number in range(5):
            handoff.put(one(number))
        handoff.follow(first.submit)
        wait_for(lambda: handoff.waiting == 0)
        assert handoff.refused == 2
        handoff.follow(second.submit)
        wait_for(lambda: handoff.waiting == 0)
    assert first.arrived == second.arrived == [0, 2, 3]
    assert told == ["1 is none of ours", "4 is none of ours"]
    assert handoff.error is None


def test_a_trainer_that_will_not_listen_ends_it_visibly() -> None:
    trainer = Trainer([InvalidArgument("the token is wrong")])
    with handing() as handoff:
        handoff.follow(trainer.submit)
        handoff.put(one(0))
        wait_for(lambda: handoff.error is not None)
        handoff.put(one(1))
    assert "the token is wrong" in str(handoff.error)
    assert len(trainer.batches) == 1
    assert handoff.waiting == 2
