"""A copy that takes its time is of the moment in which it began."""

import copy
from collections.abc import Iterator

import hypothesis.strategies as st
import pytest
from hypothesis import given

from rose.scheduler import driver_trajectory as trajectory_module
from rose.scheduler.driver_trajectory import DriverTrajectory, Phase, SlowCopy

SLICE_TOKENS = 50
SIZES = st.lists(st.integers(0, 3 * SLICE_TOKENS), max_size=12)


@pytest.fixture(autouse=True, scope="module")
def slices_are_small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trajectory_module, "SLICE_TOKENS", SLICE_TOKENS)
        yield


def states_of(sizes) -> dict[int, DriverTrajectory]:
    """Return trajectories whose contexts are so long; their numbers are not in order."""
    return {
        number: DriverTrajectory(number, 0, 0, 0, context=[number] * size)
        for number, size in zip(range(len(sizes), 0, -1), sizes, strict=True)
    }


@given(sizes=SIZES, data=st.data())
def test_copy_is_of_the_moment_in_which_it_began_whatever_changes_meanwhile(sizes, data) -> None:
    states = states_of(sizes)
    before = tuple(copy.deepcopy(list(states.values())))
    slow = SlowCopy(states)
    is_whole = not states
    while not is_whole:
        for number in data.draw(st.sets(st.sampled_from(sorted(states)))):
            state = states[number]
            slow.keep(state)
            state.phase = Phase.SPEAKING
            state.context.append(-1)
            state.tokens.append(-1)
        later = DriverTrajectory(100 + len(states), 0, 0, 0)
        states[later.number] = later
        slow.keep(later)
        is_whole = slow.advance()
    assert slow.whole() == before


@given(sizes=SIZES)
def test_no_slice_is_longer_than_the_bound_and_the_trajectory_that_reaches_it(sizes) -> None:
    states = states_of(sizes)
    copied: list[int] = []

    class Counted(SlowCopy):
        def keep(self, state: DriverTrajectory) -> None:
            copied[-1] += state.token_count()
            super().keep(state)

    slow = Counted(states)
    copied.append(0)
    while not slow.advance():
        copied.append(0)
    longest = max(sizes, default=0)
    assert sum(copied) == sum(sizes)
    assert all(tokens < SLICE_TOKENS + longest or not longest for tokens in copied)
    # No more slices than it takes, either: all but the last are full.
    assert all(tokens >= SLICE_TOKENS for tokens in copied[:-1])


def test_many_short_trajectories_are_copied_a_few_at_a_time() -> None:
    slow = SlowCopy(states_of([0] * (2 * trajectory_module.SLICE_TRAJECTORIES + 1)))
    assert [slow.advance() for _ in range(3)] == [False, False, True]
