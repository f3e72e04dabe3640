"""Every group gets as many trajectories as it has places, whatever is dropped."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from rose.demo.rl.groups import Groups


@given(st.integers(1, 4), st.lists(st.integers(0, 5), max_size=60))
def test_a_group_is_full_before_a_later_one_begins(size: int, drops: list[int]) -> None:
    groups, members = Groups(size), Counter[int]()
    for drop in drops:
        group = groups.take()
        assert all(members[earlier] == size for earlier in range(group))
        members[group] += 1
        assert members[group] <= size
        if drop == 0:
            members[group] -= 1
            groups.give_back(group)


def test_those_that_lost_one_come_first_in_the_order_of_their_losses() -> None:
    groups = Groups(2)
    assert [groups.take() for _ in range(5)] == [0, 0, 1, 1, 2]
    groups.give_back(1)
    groups.give_back(0)
    assert [groups.take() for _ in range(4)] == [1, 0, 2, 3]
