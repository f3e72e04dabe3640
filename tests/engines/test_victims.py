"""The order in which a borrower gives up slabs."""

from hypothesis import given
from hypothesis import strategies as st

from rose.engines.victims import Progress, order_of_loss
from tests.reference import victims as reference

NAMES = "abcdef"
PROGRESS = st.builds(
    Progress,
    slabs=st.sets(st.integers(0, 9)),
    tokens=st.integers(1, 4),
    age=st.integers(0, 3).map(float),
    is_in_flight=st.booleans(),
)


@given(st.sets(st.integers(0, 9)), st.fixed_dictionaries(dict.fromkeys(NAMES, PROGRESS)))
def test_each_slab_is_the_cheapest_after_the_loss_of_the_slabs_before_it(slabs, requests) -> None:
    users = {slab: {name for name, one in requests.items() if slab in one.slabs} for slab in slabs}
    assert order_of_loss(slabs, requests) == reference.order_of_loss(users, requests)


def test_slabs_of_a_step_in_flight_come_last() -> None:
    running = Progress({0}, tokens=1, age=0.0, is_in_flight=True)
    waiting = Progress({1}, tokens=900, age=9.0, is_in_flight=False)
    assert order_of_loss([0, 1], {"running": running, "waiting": waiting}) == [1, 0]
