"""Each trajectory is taken once, and only whole groups are given."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from rose_lab.demo.rl.intake import Intake
from tests.lab.demo.rl.micro import trajectory


def one(number: int, group: int, version: int = 0):
    return trajectory(number, [70, 1], reward=0.0, group=group, version=version)


def intake(**changes) -> Intake:
    return Intake(**{"group_size": 2, "vocabulary": 128, "waiting_max": 100, **changes})


@given(st.lists(st.tuples(st.integers(0, 20), st.booleans()), max_size=60), st.integers(1, 3))
def test_a_group_is_delivered_once_and_whole_whatever_is_sent_twice(calls, group_size: int) -> None:
    gate = intake(group_size=group_size)
    sent, taken = set(), []
    for number, is_taken in calls:
        answer = gate.submit([one(number, number // group_size)], newest=0)
        assert (answer.known == (number,)) == (number in sent)
        assert (answer.accepted == (number,)) == (number not in sent)
        sent.add(number)
        if is_taken:
            taken.append([each.number for each in gate.take(1, timeout_s=0.0)])
    while batch := gate.take(1, timeout_s=0.0):
        taken.append([each.number for each in batch])
    flat = [number for batch in taken for number in batch]
    whole = {n for n in sent if all(m in sent for m in group_of(n, group_size))}
    assert sorted(flat) == sorted(whole)
    assert gate.waiting == len(sent) - len(whole)
    assert gate.known == len(sent)


def group_of(number: int, size: int) -> range:
    return range(number // size * size, number // size * size + size)


def test_a_batch_is_all_whole_groups_and_waits_for_enough() -> None:
    gate = intake()
    gate.submit([one(n, n // 2) for n in (0, 2, 3, 4, 5)], newest=0)
    assert gate.take(5, timeout_s=0.0) == []
    assert [each.number for each in gate.take(3, timeout_s=0.0)] == [2, 3, 4, 5]
    gate.submit([one(1, 0)], newest=0)
    assert [each.number for each in gate.take(1, timeout_s=0.0)] == [0, 1]


def test_there_is_room_for_so_many_and_the_rest_comes_later() -> None:
    gate = intake(waiting_max=3)
    answer = gate.submit([one(n, n // 2) for n in range(5)], newest=0)
    assert (answer.accepted, answer.later) == ((0, 1, 2), (3, 4))
    gate.take(1, timeout_s=0.0)
    assert gate.submit([one(3, 1), one(4, 2)], newest=0).accepted == (3, 4)


def test_a_group_whose_last_member_never_comes_makes_room_when_it_is_stale() -> None:
    gate = intake(group_size=3, waiting_max=3)
    gate.submit([one(0, 0, version=1), one(1, 0, version=4), one(3, 1, version=2)], newest=9)
    assert [each.number for each in gate.drop_stale(4)] == [3]  # the other has one that may count
    assert [each.number for each in gate.drop_stale(5)] == [0, 1]
    assert gate.waiting == 0
    assert gate.submit([one(0, 0, version=1)], newest=9).known == (0,)


def test_what_is_not_of_this_model_is_refused_and_the_others_are_taken() -> None:
    gate = intake(vocabulary=71, learned=[70])
    good = one(0, 0)
    for place, (wrong, told) in enumerate(
        (
            (trajectory(100, [71, 1], reward=0.0), "token 71"),
            (trajectory(100, [1] * (1 << 16), reward=0.0), "65540 tokens"),
            (
                replace(good, number=100, versions=(-1,) * 4 + (3, 2)),
                "version 3, the newest version is 2",
            ),
        )
    ):
        answer = gate.submit([replace(good, number=place), wrong], newest=2)
        assert answer.accepted == (place,)
        assert list(answer.refused) == [100]
        assert told in answer.refused[100]
    assert gate.waiting == 3
    assert gate.submit([good, one(70, 3)], newest=2).known == (0, 70)
