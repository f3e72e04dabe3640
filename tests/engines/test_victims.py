"""The slabs a borrower parts with first."""

from hypothesis import given
from hypothesis import strategies as st

from rose.engines.victims import Progress, order_of_loss
from tests.reference import victims as reference

NAMES = "abcdef"
PROGRESS = st.builds(
    Progress,
    tokens=st.integers(1, 4),
    age=st.integers(0, 3).map(float),
    is_in_flight=st.booleans(),
)


@given(
    st.dictionaries(st.integers(0, 9), st.sets(st.sampled_from(NAMES))),
    st.fixed_dictionaries(dict.fromkeys(NAMES, PROGRESS)),
)
def test_each_slab_is_the_cheapest_when_those_before_it_are_gone(users, progress) -> None:
    assert order_of_loss(users, progress) == reference.order_of_loss(users, progress)


def test_a_step_in_flight_is_spared_however_little_it_has_done() -> None:
    progress = {"running": Progress(1, 0.0, True), "waiting": Progress(900, 9.0, False)}
    assert order_of_loss({0: {"running"}, 1: {"waiting"}}, progress) == [1, 0]
