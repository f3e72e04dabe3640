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


def test_the_newest_of_two_equal_rollouts_loses_first() -> None:
    old, new = Progress(10, 5.0, False), Progress(10, 1.0, False)
    assert order_of_loss({0: {"old"}, 1: {"new"}}, {"old": old, "new": new}) == [1, 0]


def test_two_short_rollouts_go_before_one_long_one() -> None:
    progress = {
        "short": Progress(10, 0.0, False),
        "also short": Progress(20, 0.0, False),
        "long": Progress(31, 9.0, False),
    }
    users = {0: {"long"}, 1: {"short", "also short"}}
    assert order_of_loss(users, progress) == [1, 0]


def test_a_step_in_flight_is_spared_however_little_it_has_done() -> None:
    progress = {"running": Progress(1, 0.0, True), "waiting": Progress(900, 9.0, False)}
    assert order_of_loss({0: {"running"}, 1: {"waiting"}}, progress) == [1, 0]


def test_what_a_lost_request_holds_elsewhere_costs_nothing_more() -> None:
    progress = {"a": Progress(30, 0.0, False), "b": Progress(40, 0.0, False)}
    assert order_of_loss({0: {"b"}, 1: {"a"}, 2: {"a"}, 3: set()}, progress) == [3, 1, 2, 0]
