"""Waits have the measured distribution and depend on trajectory and turn alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose_lab.demo.environments import ToolWaits
from rose_lab.traces import tool_waits


@given(st.integers(0, 1 << 40), st.integers(0, 1000))
def test_a_wait_is_always_the_same(trajectory: int, turn: int) -> None:
    assert 0 <= ToolWaits(7)(trajectory, turn) == ToolWaits(7)(trajectory, turn) <= 60 / 32


def test_waits_come_as_often_as_they_were_measured() -> None:
    waits = ToolWaits(0)
    drawn = np.array([waits(trajectory, turn) for trajectory in range(100) for turn in range(20)])
    measured = np.minimum(tool_waits(1000), 60.0) / 32
    for rank in (25, 50, 75):
        share = np.mean(drawn <= np.percentile(measured, rank))
        assert share == pytest.approx(rank / 100, abs=0.05)
    # Neither number alone decides.
    assert len(set(drawn[:20])) > 1
    assert len(set(drawn[::20])) > 1
