"""Every finished trajectory reaches the trainer, in order, whatever becomes of trainers."""

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.errors import DeadlineExceeded, InvalidArgument, Unavailable
from rose.scheduler.events import Consumed, VersionPublished
from rose_lab.demo.rl import handoff as handoff_module
from rose_lab.demo.rl.handoff import Handoff
from rose_lab.demo.rl.messages import SUBMIT_MAX, Reply, Submitted, TrainerStatus
from rose_lab.demo.rl.trajectory import NOT_GENERATED, Trajectory
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
        handoff = Handoff(kept=kept, report=print, on_refused=told.append)
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
    Handoff(kept=1, report=print, on_refused=print).stop()  # Nor for a thread that never was.


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


# ---- what the trainer reports --------------------------------------------------------------------


class Reporter:
    """Says each of `answers` once, in order, and the last of them for ever."""

    def __init__(self, answers: Sequence[TrainerStatus | Exception]) -> None:
        self.answers = list(answers)
        self.told = 0

    def submit(self, _trajectories: Sequence[Trajectory]) -> Reply:
        answer = self.answers[min(self.told, len(self.answers) - 1)]
        self.told += 1
        if isinstance(answer, Exception):
            raise answer
        return Reply(Submitted(), answer)

    @property
    def has_said_all(self) -> bool:
        """Whether all was said, and heard: it was asked again."""
        return self.told > len(self.answers)


class Watched:
    def __init__(self) -> None:
        self.news: list[VersionPublished | Consumed] = []
        self.watch = Handoff(kept=1, report=self.news.append, on_refused=print)

    def follow(self, answers: Sequence[TrainerStatus | Exception]) -> None:
        """Follow a trainer until it has said all."""
        trainer = Reporter(answers)
        self.watch.follow(trainer.submit)
        wait_for(lambda: trainer.has_said_all)
        self.watch.follow(None)

    @property
    def versions(self) -> list[int]:
        return [one.version for one in self.news if isinstance(one, VersionPublished)]

    @property
    def consumed(self) -> list[int]:
        return [one.trajectories for one in self.news if isinstance(one, Consumed)]


@contextmanager
def watching() -> Iterator[Watched]:
    with no_thread_is_left():
        watched = Watched()
        watched.watch.start()
        try:
            yield watched
        finally:
            watched.watch.stop()


def said(**values) -> TrainerStatus:
    return TrainerStatus(**values)


def test_versions_are_reported_once_and_never_decrease() -> None:
    with watching() as on:
        on.follow([said(version=n) for n in (0, 1, 1, 4)])
        on.follow([said(version=n) for n in (2, 4, 5)])  # It went back to its checkpoint.
    assert on.versions == [1, 4, 5]
    assert on.watch.version == 5


def test_what_waits_is_not_consumed_yet() -> None:
    with watching() as on:
        on.follow([said(consumed=9, waiting=9), said(consumed=12, waiting=4)])
    assert on.consumed == [8]


@st.composite
def lives(draw) -> list[list[TrainerStatus]]:
    """Draw incarnations; each goes on from what one before it had learned, or less."""
    drawn, learned = [], 0
    for _ in range(draw(st.integers(1, 4))):
        learned = draw(st.integers(0, learned))
        stales: Counter[int] = Counter()
        life = []
        for _ in range(draw(st.integers(1, 4))):
            more = draw(st.lists(st.integers(0, 3), max_size=5))
            stales.update(more)
            learned += len(more)
            waiting = draw(st.integers(0, 9))
            life.append(
                said(
                    consumed=learned + waiting,
                    waiting=waiting,
                    staleness=dict(stales),
                    passed_over=2 * stales.total(),
                )
            )
        drawn.append(life)
    return drawn


@given(lives())
def test_consumption_and_staleness_add_up_over_incarnations_that_fall_back(drawn) -> None:
    with watching() as on:
        for life in drawn:
            on.follow(life)
    every = [status.consumed - status.waiting for life in drawn for status in life]
    # What one learned again after it had forgotten was consumed before.
    assert sum(on.consumed) == max(every)
    assert all(more > 0 for more in on.consumed)
    truth: Counter[int] = Counter()
    for life in drawn:
        truth.update(life[-1].staleness)
    assert on.watch.staleness == truth
    assert on.watch.passed_over == sum(life[-1].passed_over for life in drawn)


def test_versions_are_counted_over_incarnations() -> None:
    with watching() as on:
        on.follow([said(version=1, versions=1), said(version=3, versions=3)])
        on.follow([said(version=9, versions=1), said(version=10, versions=2)])
    assert on.watch.version == 10
    assert on.watch.published == 5


def test_a_late_answer_of_a_trainer_that_was_left_is_ignored() -> None:
    is_asked, may_answer = threading.Event(), threading.Event()

    def ask(_trajectories: Sequence[Trajectory]) -> Reply:
        is_asked.set()
        assert may_answer.wait(LONG_S)
        return Reply(Submitted(), said(version=9, consumed=9, staleness={1: 9}))

    with watching() as on:
        on.watch.follow(ask)
        assert is_asked.wait(LONG_S)
        on.watch.follow(None)
        may_answer.set()
        on.follow([said(version=1)])
    assert on.versions == [1]
    assert on.consumed == []
    assert on.watch.staleness == Counter()


def test_stop_asks_once_more(monkeypatch) -> None:
    monkeypatch.setattr(handoff_module, "_EVERY_S", LONG_S)
    trainer = Reporter([said(version=3, consumed=2)])
    with watching() as on:
        on.watch.follow(trainer.submit)
    assert on.versions == [3]
    assert trainer.told == 1
