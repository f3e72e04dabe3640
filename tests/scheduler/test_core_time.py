"""The core's time never goes back, and never waits for a clock that did."""

from dataclasses import dataclass
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from rose.scheduler.durable import CoreTime

TIMES = st.integers(0, 1 << 61)


@dataclass
class SetClock:
    at_ns: int = 0

    def now_ns(self) -> int:
        return self.at_ns

    def sleep(self, seconds: float) -> None:
        raise AssertionError


@given(st.lists(TIMES, min_size=2), st.integers(0, 1 << 59))
def test_time_passes_as_the_clocks_does_and_stands_still_when_it_goes_back(times, before) -> None:
    clock = SetClock(times[0])
    time = CoreTime(clock, not_before_ns=before)
    last_ns = time.now_ns()
    assert last_ns >= min(before, 1 << 60)
    if times[0] >= before:
        assert last_ns == min(times[0], 1 << 60)
    for was_ns, at_ns in pairwise(times):
        clock.at_ns = at_ns
        now_ns = time.now_ns()
        passed_ns = max(0, at_ns - was_ns)
        assert now_ns == min(last_ns + passed_ns, 1 << 60)
        last_ns = now_ns
