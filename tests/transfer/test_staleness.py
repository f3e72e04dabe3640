"""Weights are stale when they are too far behind; both ways it is told."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.errors import InvalidArgument
from rose.transfer.receiving.staleness import CROSSINGS_MAX, Crossing, Lag, Staleness
from rose.transfer.version import Version


class HandClock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def now_ns(self) -> int:
        return int(self.seconds * 1e9)

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


def v(n: int, incarnation: int = 1) -> Version:
    return Version("run", incarnation, n)


class Watched:
    def __init__(self, versions: int = 2, seconds: float = 10.0) -> None:
        self.clock = HandClock()
        self.told: list[Crossing] = []
        self.staleness = Staleness(
            max_lag_versions=versions,
            max_lag_seconds=seconds,
            clock=self.clock,
            on_crossing=self.told.append,
        )


def test_weights_are_stale_by_versions_until_they_have_caught_up() -> None:
    one = Watched(versions=2)
    one.staleness.committed(v(1))
    for n in (2, 3):
        one.staleness.seen(v(n))
    assert (one.staleness.lag(), one.staleness.is_stale) == (Lag(2, 0.0), False)
    one.staleness.seen(v(4))
    assert one.staleness.is_stale
    one.staleness.committed(v(2))
    assert (one.staleness.lag().versions, one.staleness.is_stale) == (2, False)
    assert [(said.is_stale, said.lag.versions) for said in one.told] == [(True, 3), (False, 2)]
    assert one.staleness.crossings() == one.told


def test_weights_are_stale_by_time_counted_from_the_first_version_that_they_lack() -> None:
    one = Watched(versions=9, seconds=10)
    one.staleness.committed(v(1))
    one.clock.sleep(100)
    assert not one.staleness.is_stale  # nothing is newer
    one.staleness.seen(v(2))
    one.clock.sleep(6)
    one.staleness.seen(v(3))
    one.clock.sleep(4)
    assert one.staleness.lag() == Lag(2, 10.0)
    assert not one.staleness.is_stale
    one.clock.sleep(1)
    assert one.told == []  # time alone tells nobody: it has no thread
    assert one.staleness.look()
    one.staleness.committed(v(2))
    assert one.staleness.lag() == Lag(1, 5.0)
    assert [said.is_stale for said in one.told] == [True, False]
    assert one.told[0].at_ns == 111 * 10**9


def test_a_version_is_first_seen_once() -> None:
    one = Watched(seconds=10)
    one.staleness.committed(v(1))
    one.staleness.seen(v(2))
    one.clock.sleep(8)
    one.staleness.seen(v(2))
    assert one.staleness.lag().seconds == 8
    one.staleness.seen(v(1))  # what is held is no news
    assert one.staleness.lag().versions == 1


def test_one_update_over_several_versions_counts_them_all() -> None:
    one = Watched(versions=5)
    one.staleness.committed(v(1))
    one.staleness.seen(v(9))  # a receiver may hear of the newest only
    assert one.staleness.lag().versions == 8
    assert one.staleness.is_stale


def test_weights_that_no_version_names_are_behind_all_that_are_seen() -> None:
    one = Watched()
    assert one.staleness.lag() == Lag(0, 0.0)
    for n in (5, 6, 7):
        one.staleness.seen(v(n))
    assert one.staleness.lag().versions == 3
    one.staleness.committed(Version("", 0, 0))
    assert one.staleness.lag().versions == 3
    one.staleness.committed(v(7))
    assert one.staleness.lag() == Lag(0, 0.0)


def test_versions_of_a_dead_incarnation_count_no_more() -> None:
    one = Watched()
    one.staleness.committed(v(3))
    for n in (4, 5, 6):
        one.staleness.seen(v(n))
    assert one.staleness.is_stale
    one.staleness.seen(v(7, incarnation=2))
    assert one.staleness._seen.keys() == {v(7, incarnation=2)}
    one.staleness.seen(v(6))  # a replay
    one.staleness.committed(v(7, incarnation=2))
    one.staleness.seen(v(8))
    assert one.staleness.lag() == Lag(0, 0.0)
    assert not one.staleness.is_stale


def test_weights_that_go_back_are_behind_again() -> None:
    one = Watched(versions=1)
    one.staleness.committed(v(5))
    one.staleness.committed(v(3))
    one.staleness.seen(v(5))
    assert one.staleness.lag().versions == 2
    assert one.staleness.is_stale


@given(st.lists(st.tuples(st.sampled_from(["seen", "committed", "sleep"]), st.integers(1, 12))))
def test_what_was_told_alternates_and_ends_with_what_is(events: list[tuple[str, int]]) -> None:
    one = Watched(versions=3, seconds=20)
    held, newest = 0, 0
    for what, n in events:
        if what == "sleep":
            one.clock.sleep(n)
            one.staleness.look()
        elif what == "seen":
            newest = max(newest, n)
            one.staleness.seen(v(n))
        else:
            held = n
            one.staleness.committed(v(n))
        if newest > held > 0 and one.staleness._seen:
            assert one.staleness.lag().versions == max(one.staleness._seen).n - held
        assert [said.is_stale for said in one.told] == [at % 2 == 0 for at in range(len(one.told))]
        assert (len(one.told) % 2 == 1) == one.staleness.is_stale
        lag = one.staleness.lag()
        assert one.staleness.is_stale == (lag.versions > 3 or lag.seconds > 20)


def test_a_callback_may_ask_and_many_threads_may_call() -> None:
    clock = HandClock()
    told: list[bool] = []

    def on_crossing(crossing: Crossing) -> None:
        told.append(crossing.is_stale)
        assert staleness.lag().seconds == 0

    staleness = Staleness(
        max_lag_versions=0, max_lag_seconds=1e9, clock=clock, on_crossing=on_crossing
    )
    staleness.committed(v(0))

    def go(first: int) -> None:
        for n in range(first, 400, 4):
            staleness.seen(v(n + 1))
            staleness.committed(v(n + 1))

    threads = [threading.Thread(target=go, args=(first,)) for first in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert told == [at % 2 == 0 for at in range(len(told))]
    assert len(staleness.crossings()) <= CROSSINGS_MAX


@pytest.mark.parametrize(
    ("versions", "seconds"), [(-1, 1.0), (0, 0.0), (0, -1.0), (0, float("nan"))]
)
def test_limits_that_are_always_crossed_are_refused(versions: int, seconds: float) -> None:
    with pytest.raises(InvalidArgument, match="allow more"):
        Watched(versions, seconds)
