"""The slabs that a borrower gives up first."""

from hypothesis import given
from hypothesis import strategies as st

from rose.engines.victims import Progress, order_of_loss
from tests.reference import victims as reference

REQUESTS = st.lists(
    st.builds(
        Progress,
        slabs=st.frozensets(st.integers(0, 9)),
        tokens=st.integers(1, 4),
        age=st.integers(0, 3).map(float),
        is_in_flight=st.booleans(),
    ),
    max_size=6,
)


@given(st.sets(st.integers(0, 9)), REQUESTS)
def test_each_slab_is_the_cheapest_after_the_loss_of_those_before_it(slabs, requests) -> None:
    on_loan = [
        Progress(one.slabs & slabs, one.tokens, one.age, one.is_in_flight) for one in requests
    ]
    expected = reference.order_of_loss(slabs, on_loan)
    assert order_of_loss(slabs, requests) == expected


def test_slabs_of_a_step_in_flight_go_last_however_few_tokens_it_has() -> None:
    running = Progress(frozenset({0}), 1, 0.0, is_in_flight=True)
    waiting = Progress(frozenset({1}), 900, 9.0, is_in_flight=False)
    assert order_of_loss([0, 1], [running, waiting]) == [1, 0]
