"""Waits have the measured distribution and depend on trajectory and turn alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.demo.environments import ToolWaits
from rose.errors import InvalidArgument

WAITS_S = np.array([0.1, 0.1, 0.2, 5.0])


@given(st.integers(0, 1 << 40), st.integers(0, 1000))
def test_a_wait_is_a_measured_one_and_always_the_same(trajectory: int, turn: int) -> None:
    waits = ToolWaits(WAITS_S, scale=2.0, seed=7)
    wait_s = waits.wait_s(trajectory, turn)
    assert wait_s in {0.2, 0.4, 10.0}
    assert wait_s == ToolWaits(WAITS_S, scale=2.0, seed=7).wait_s(trajectory, turn)


def test_waits_come_as_often_as_they_were_measured() -> None:
    waits = ToolWaits(WAITS_S)
    drawn = np.array(
        [waits.wait_s(trajectory, turn) for trajectory in range(100) for turn in range(20)]
    )
    for wait_s, share in ((0.1, 0.5), (0.2, 0.25), (5.0, 0.25)):
        assert np.mean(drawn == wait_s) == pytest.approx(share, abs=0.05)
    # Neither number alone decides.
    assert len(set(drawn[:20])) > 1
    assert len(set(drawn[::20])) > 1


def test_the_given_waits_may_change_afterwards() -> None:
    given_s = np.ones(3)
    waits = ToolWaits(given_s)
    given_s[:] = 9.0
    assert waits.wait_s(0, 0) == 1.0


@pytest.mark.parametrize(
    "make",
    [
        lambda: ToolWaits(np.array([])),
        lambda: ToolWaits(np.array([-1.0])),
        lambda: ToolWaits(np.array([np.nan])),
        lambda: ToolWaits(np.ones((2, 2))),
        lambda: ToolWaits(np.ones(1), scale=-1.0),
        lambda: ToolWaits(np.ones(1), scale=np.inf),
        lambda: ToolWaits(np.ones(1), seed=-1),
        lambda: ToolWaits(np.ones(1)).wait_s(-1, 0),
        lambda: ToolWaits(np.ones(1)).wait_s(0, -1),
    ],
)
def test_what_is_no_wait_is_refused(make) -> None:
    with pytest.raises(InvalidArgument):
        make()
