"""Turns: what is delivered, when they are over, and what happens when they are not."""

import pytest

from rose.scheduler.events import (
    Deliver,
    Drop,
    DropReason,
    GrantChanged,
    Start,
    TurnDone,
    TurnProgress,
    WorkerLost,
)
from rose.scheduler.worker import TurnEnd
from tests.scheduler.rig import BORROWED, Rig, ended, progress, stop_of

PROGRESS = (
    *("trajectory", "turn", "worker", "grant_epoch"),
    *("first_token", "tokens", "version_min", "version_max"),
)


def running(rig: Rig) -> Start:
    rig.join(0)
    return rig.run(1)


def test_doubled_and_overlapping_tokens_are_delivered_once() -> None:
    rig = Rig()
    start = running(rig)
    news = [
        progress(start, 0, 4),
        progress(start, 0, 4),
        progress(start, 2, 5),
        progress(start, 1, 3),
    ]
    assert rig.step(*news) == [Deliver(1, 0, 0, 0, 4), Deliver(1, 0, 2, 2, 3)]
    assert rig.core.stats().tokens_delivered == 7
    assert rig.core.stats().tokens_ignored == 4 + 2 + 3


def test_tokens_beyond_the_limit_are_not_delivered() -> None:
    rig = Rig()
    start = running(rig)
    assert rig.step(progress(start, 0, 50)) == [Deliver(1, 0, 0, 0, 20)]


def test_end_that_overtakes_the_last_tokens_waits_for_them() -> None:
    rig = Rig()
    start = running(rig)
    rig.step(progress(start, 0, 4))
    assert rig.step(ended(start, TurnEnd.FINISHED, tokens=9)) == []
    assert rig.core.stats().used_kv_tokens == {0: 0}
    assert rig.step(progress(start, 4, 5), after_ms=99) == [Deliver(1, 0, 0, 0, 5), TurnDone(1, 0)]


def test_tokens_that_never_come_are_generated_again() -> None:
    rig = Rig()
    start = running(rig)
    rig.step(progress(start, 0, 4), ended(start, TurnEnd.FINISHED, tokens=9))
    assert rig.step(after_ms=100) == []  # not at once where it just was
    assert rig.step(after_ms=50) == [Start(1, 0, 0, 1, first_token=4, max_new_tokens=16)]


def test_end_without_a_count_trusts_the_order() -> None:
    rig = Rig()
    start = running(rig)
    last = [progress(start, 0, 4), ended(start, TurnEnd.FINISHED)]
    assert rig.step(*last) == [Deliver(1, 0, 0, 0, 4), TurnDone(1, 0)]


def test_turn_that_said_all_it_may_is_done_though_its_end_was_lost() -> None:
    rig = Rig()
    start = running(rig)
    rig.step(progress(start, 0, 20))
    assert rig.step(WorkerLost(0)) == [TurnDone(1, 0)]


def test_failed_turn_comes_back_after_a_while_when_there_is_nobody_else() -> None:
    rig = Rig()
    start = running(rig)
    assert rig.step(ended(start, TurnEnd.FAILED)) == []
    assert rig.step(after_ms=49) == []
    assert rig.step(after_ms=1) == [Start(1, 0, 0, 1, 0, 20)]


def test_turn_that_fails_too_often_drops_its_trajectory() -> None:
    rig = Rig(attempts_max=3)
    start = running(rig)
    for _ in range(2):
        rig.step(ended(start, TurnEnd.FAILED))
        (start,) = rig.step(after_ms=50)
    *_, drop = rig.step(ended(start, TurnEnd.FAILED))
    assert drop == Drop(1, DropReason.FAILED)
    stats = rig.core.stats()
    assert (stats.dropped, stats.queued, stats.running) == (1, 0, 0)


def test_attempts_are_counted_turn_by_turn() -> None:
    rig = Rig(attempts_max=2)
    start = running(rig)
    for turn in range(3):
        rig.step(ended(start, TurnEnd.FAILED))
        (start,) = rig.step(after_ms=50)
        *_, done = rig.step(progress(start, 0, 4), ended(start, TurnEnd.FINISHED, 4))
        assert done == TurnDone(1, turn)
        start = rig.run(1, turn=turn + 1)


@pytest.mark.parametrize("end", TurnEnd)
def test_doubled_end_of_an_earlier_try_never_leaves_the_turn_on_two_workers(end: TurnEnd) -> None:
    rig = Rig()
    first = running(rig)
    rig.step(ended(first, TurnEnd.INTERRUPTED))
    (second,) = rig.step(after_ms=50)  # the same worker, the same lease
    rig.join(7)
    actions = rig.step(ended(first, end))  # late: the worker still runs the second try
    assert actions[0] == stop_of(second)
    assert len(actions) == 2


@pytest.mark.parametrize(
    "change",
    [
        {"trajectory": 2},
        {"turn": 1},
        {"turn": -1},
        {"worker": 7},
        {"grant_epoch": 2},
        {"grant_epoch": 0},
        {"tokens": -1},
        {"tokens": 0},
        {"tokens": 1 << 62},
        {"first_token": -1},
        {"first_token": 1 << 62},
    ],
)
def test_what_no_running_turn_could_say_is_counted_and_changes_nothing(change) -> None:
    rig = Rig()
    start = running(rig)
    rig.join(7)
    event = progress(start, 0, 4)
    fields = {name: getattr(event, name) for name in PROGRESS}
    assert rig.step(TurnProgress(**(fields | change))) == []
    assert rig.core.stats().stale_events == 1
    assert rig.step(progress(start, 0, 4)) == [Deliver(1, 0, 0, 0, 4)]


# ---- stalls --------------------------------------------------------------------------------------


def test_stalled_turn_moves_when_another_worker_has_room() -> None:
    rig = Rig()
    rig.join(0, BORROWED)
    start = rig.run(1, context=100)  # 0.1 s of prefill
    assert rig.step(after_ms=1100) == []  # nowhere to go
    rig.join(7, kv_tokens=119)
    assert rig.step(after_ms=1) == []  # nor now
    rig.step(GrantChanged(7, 1, 120, 0.0))
    assert rig.core.stats().recalled == 1
    assert rig.step(ended(start, TurnEnd.INTERRUPTED)) == [Start(1, 0, 7, 1, 0, 20)]


def test_progress_is_what_a_stall_lacks() -> None:
    rig = Rig()
    rig.join(0, BORROWED)
    start = rig.run(1)
    rig.join(7)
    for count in range(5):
        assert len(rig.step(progress(start, count, 1), after_ms=999)) == 1
    assert rig.step(after_ms=999) == []
    assert rig.step(after_ms=1) == [stop_of(start)]


def test_turn_of_a_dedicated_worker_is_left_alone() -> None:
    rig = Rig()
    rig.join(0, seats=1)
    rig.run(1)
    rig.join(5, BORROWED)
    borrowed = rig.run(2)
    rig.join(7)
    assert rig.step(after_ms=2000) == [stop_of(borrowed)]


def test_time_for_the_prompt_is_no_stall() -> None:
    rig = Rig()
    rig.join(0, BORROWED)
    starts = [rig.run(trajectory, context=500) for trajectory in (1, 2)]  # half a second each
    rig.join(7)
    assert rig.step(after_ms=1499) == []
    assert rig.step(after_ms=1) == [stop_of(starts[0])]
    assert stop_of(starts[1]) not in rig.step(after_ms=499)
    assert stop_of(starts[1]) in rig.step(after_ms=1)


def test_a_stalled_turn_that_has_said_all_is_done_without_room_elsewhere() -> None:
    rig = Rig()
    rig.join(0, BORROWED)
    start = rig.run(1)
    rig.step(progress(start, 0, 20))  # all that it may say, and the news of its end is lost
    assert rig.step(after_ms=1010) == [stop_of(start)]
    assert rig.step(after_ms=100) == [TurnDone(1, 0)]
    assert rig.core.stats().used_kv_tokens == {0: 0}


def test_room_for_one_frees_one_stalled_turn() -> None:
    rig = Rig()
    rig.join(0, BORROWED)
    starts = [rig.run(trajectory) for trajectory in (1, 2, 3)]
    rig.join(7, seats=1)
    assert rig.step(after_ms=2000) == [stop_of(starts[0])]
    assert rig.core.stats().used_kv_tokens == {0: 90, 7: 0}
