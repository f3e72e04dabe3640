"""The slabs that a borrower gives up first."""

from hypothesis import given
from hypothesis import strategies as st

from rose.engines.victims import Progress, order_of_loss
from tests.reference import victims as reference

REQUESTS = st.lists(
    st.builds(
        Progress,
        blocks=st.frozensets(st.integers(0, 29)),
        tokens=st.integers(1, 4),
        age=st.integers(0, 3).map(float),
        is_in_flight=st.booleans(),
    ),
    max_size=6,
)


def slabs_of(blocks: list[int]) -> list[int]:
    return [block // 3 for block in blocks]


@given(st.sets(st.integers(0, 9)), REQUESTS)
def test_each_slab_is_the_cheapest_after_the_loss_of_those_before_it(slabs, requests) -> None:
    held = [{block // 3 for block in one.blocks} & slabs for one in requests]
    expected = reference.order_of_loss(slabs, list(zip(held, requests, strict=True)))
    assert order_of_loss(slabs, requests, slabs_of) == expected


def test_slabs_of_a_step_in_flight_go_last_however_few_tokens_it_has() -> None:
    running = Progress([0], 1, 0.0, is_in_flight=True)
    waiting = Progress([3], 900, 9.0, is_in_flight=False)
    assert order_of_loss([0, 1], [running, waiting], slabs_of) == [1, 0]
