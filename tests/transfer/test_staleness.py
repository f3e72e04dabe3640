"""The distance of weights to the newest published version."""

from hypothesis import given
from hypothesis import strategies as st

from rose.transfer.manifest import Version
from rose.transfer.receiving.staleness import Lag, Staleness
from tests.transfer.worker import HandClock


def v(n: int, incarnation: int = 1) -> Version:
    return Version("run", incarnation, n)


class Watched:
    def __init__(self) -> None:
        self.clock = HandClock()
        self.staleness = Staleness(self.clock)


def test_time_counts_from_the_first_version_that_weights_lack() -> None:
    one = Watched()
    one.staleness.committed(v(1))
    one.clock.sleep(100)
    assert one.staleness.lag() == Lag(0, 0.0)  # nothing is newer
    one.staleness.seen(v(2))
    one.clock.sleep(6)
    one.staleness.seen(v(3))
    one.clock.sleep(4)
    assert one.staleness.lag() == Lag(2, 10.0)
    one.staleness.committed(v(2))
    assert one.staleness.lag() == Lag(1, 4.0)


def test_second_sighting_of_a_version_does_not_reset_the_lag() -> None:
    one = Watched()
    one.staleness.committed(v(1))
    one.staleness.seen(v(2))
    one.clock.sleep(8)
    one.staleness.seen(v(2))
    assert one.staleness.lag().seconds == 8
    one.staleness.seen(v(1))  # what is held is no news
    assert one.staleness.lag().versions == 1


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
    one.staleness.seen(v(7, incarnation=2))
    assert one.staleness._seen.keys() == {v(7, incarnation=2)}
    one.staleness.seen(v(6))  # a replay
    one.staleness.committed(v(7, incarnation=2))
    one.staleness.seen(v(8))
    assert one.staleness.lag() == Lag(0, 0.0)


@given(st.lists(st.tuples(st.sampled_from(["seen", "committed"]), st.integers(1, 12))))
def test_lag_is_the_distance_to_the_newest_version(events: list[tuple[str, int]]) -> None:
    one = Watched()
    held, newest = 0, 0
    for what, n in events:
        if what == "seen":
            newest = max(newest, n)
            one.staleness.seen(v(n))
        else:
            held = n
            one.staleness.committed(v(n))
        if newest > held > 0 and one.staleness._seen:
            assert one.staleness.lag().versions == max(one.staleness._seen).n - held
