"""What the trainer says becomes news once, however often it dies and falls back."""

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.demo.rl import handoff as handoff_module
from rose.demo.rl.handoff import Handoff
from rose.demo.rl.history import RelayedBytes
from rose.demo.rl.messages import Reply, Submitted, TrainerStatus
from rose.demo.rl.trajectory import Trajectory
from rose.scheduler.events import Consumed, VersionPublished
from tests.node.rig import no_thread_is_left
from tests.waiting import LONG_S, wait_for

START = TrainerStatus()


@pytest.fixture(autouse=True, scope="module")
def _look_often() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(handoff_module, "_EVERY_S", 0.001)
        yield


class Trainer:
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
        self.watch = Handoff(kept=1, tell=self.news.append, on_refused=print)

    def follow(self, answers: Sequence[TrainerStatus | Exception]) -> None:
        """Follow a trainer until it has said all."""
        trainer = Trainer(answers)
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
    return replace(START, **values)


def test_versions_are_told_once_and_never_back() -> None:
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


def test_what_a_trainer_says_after_it_was_left_is_not_heard() -> None:
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
    trainer = Trainer([said(version=3, consumed=2)])
    with watching() as on:
        on.watch.follow(trainer.submit)
    assert on.versions == [3]
    assert trainer.told == 1


def test_sum_goes_on_when_a_relay_begins_from_nothing() -> None:
    moved = RelayedBytes()
    moved.begin()
    moved.hear('{"crossing_bytes": 10, "sent_bytes": 20}')
    moved.hear('{"crossing_bytes": 11, "sent_bytes": 25}')
    assert moved.sums() == (11, 25)
    moved.begin()
    assert moved.sums() == (11, 25)
    moved.hear('{"crossing_bytes": 1, "sent_bytes": 2}')
    assert moved.sums() == (12, 27)


@pytest.mark.parametrize(
    "line", ["", "I1122 grpc says something", "[1]", '{"crossing_bytes": "1"}']
)
def test_line_that_is_no_figure_says_nothing(line: str) -> None:
    moved = RelayedBytes()
    moved.hear(line)
    assert moved.sums() == (0, 0)
