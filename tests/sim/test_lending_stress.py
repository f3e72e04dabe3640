"""Trouble takes away what is lent, at its times and at no other."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.errors import InvalidArgument
from rose.sim.cluster.lending_stress import flapping, revoked, revoked_during_updates
from rose.sim.cluster.world import Lending

lendings = st.lists(
    st.tuples(st.floats(1, 50), st.floats(0, 1), st.integers(0, 9)), min_size=1, max_size=8
).map(
    lambda rows: Lending(
        at_ms=np.cumsum([0.0, *(row[0] for row in rows)])[:-1],
        share=np.array([row[1] for row in rows]),
        kv_tokens=np.array([row[2] for row in rows]),
    )
)


def at(lending, time_ms):
    row = np.searchsorted(lending.at_ms, time_ms, side="right") - 1
    return lending.share[row], lending.kv_tokens[row]


def is_sound(lending) -> bool:
    return lending.at_ms[0] == 0 and (np.diff(lending.at_ms) > 0).all()


@given(lendings, st.floats(0, 300), st.floats(0, 300), st.floats(0, 400))
def test_nothing_is_lent_in_a_burst_and_all_else_stays(lending, from_ms, for_ms, when_ms) -> None:
    after = revoked(lending, from_ms=from_ms, to_ms=from_ms + for_ms)
    assert is_sound(after)
    inside = from_ms <= when_ms < from_ms + for_ms
    assert at(after, when_ms) == ((0.0, 0) if inside else at(lending, when_ms))


@given(lendings, st.floats(1, 100), st.floats(0, 1), st.floats(0, 300, exclude_max=True))
def test_flapping_takes_everything_at_the_end_of_each_period(
    lending, period_ms, lent_share, when_ms
) -> None:
    after = flapping(lending, period_ms=period_ms, lent_share=lent_share, horizon_ms=300.0)
    assert is_sound(after)
    of_period = when_ms % period_ms / period_ms
    if abs(of_period - lent_share) > 1e-6 and 1e-6 < of_period < 1 - 1e-6:
        is_lent = of_period < lent_share
        assert at(after, when_ms) == (at(lending, when_ms) if is_lent else (0.0, 0))
    assert at(after, 300.0) == at(lending, 300.0)


@given(lendings, st.lists(st.integers(0, 300), max_size=4, unique=True), st.integers(0, 300))
def test_updates_are_met_by_a_revocation_even_where_they_overlap(
    lending, published, when_ms
) -> None:
    published = np.array(sorted(published), dtype=np.float64)
    after = revoked_during_updates(lending, published_ms=published, after_ms=2.5, for_ms=40.0)
    assert is_sound(after)
    inside = ((published + 2.5 <= when_ms) & (when_ms < published + 42.5)).any()
    assert at(after, when_ms) == ((0.0, 0) if inside else at(lending, when_ms))


def test_a_revocation_within_another_ends_with_the_later_one() -> None:
    always = Lending(np.zeros(1), np.ones(1), np.ones(1, dtype=np.int64))
    after = revoked_during_updates(
        always, published_ms=np.array([10.0, 30.0]), after_ms=0.0, for_ms=40.0
    )
    assert after.at_ms.tolist() == [0.0, 10.0, 70.0]
    assert after.share.tolist() == [1.0, 0.0, 1.0]


def test_times_that_cannot_be_are_refused() -> None:
    lending = Lending(np.zeros(1), np.ones(1), np.ones(1, dtype=np.int64))
    for make in (
        lambda: revoked(lending, from_ms=5, to_ms=4),
        lambda: revoked(lending, from_ms=-1, to_ms=4),
        lambda: revoked(lending, from_ms=0, to_ms=np.inf),
        lambda: flapping(lending, period_ms=0, lent_share=0.5, horizon_ms=9),
        lambda: flapping(lending, period_ms=1, lent_share=1.5, horizon_ms=9),
    ):
        with pytest.raises(InvalidArgument):
            make()
