"""Slices that somebody else disturbed are void, and taken again while there is time."""

from rose_lab.demo.record import Slice, SliceCounts
from rose_lab.demo.slices import CoreUse, SliceTaker, in_turn, why_foreign


class Ticking:
    """Moves on by a second each time somebody looks."""

    def __init__(self) -> None:
        self._now_ns = 0

    def now_ns(self) -> int:
        self._now_ns += 1_000_000_000
        return self._now_ns

    def sleep(self, seconds: float) -> None:
        raise AssertionError(seconds)


def test_every_arm_is_first_once() -> None:
    assert [in_turn("abc", number)[0] for number in range(3)] == ["a", "b", "c"]
    assert in_turn("abc", 4) == ["b", "c", "a"]


def taken(answers: list[str | None], *, spare_s: float) -> tuple[SliceTaker, list[bool]]:
    clock = Ticking()
    slices = SliceTaker(lambda: lambda: answers.pop(0), clock, spare_s=spare_s)
    are_void = []
    while answers:
        are_void.append(slices.take(lambda: Slice("alone", 0, 0.0, 1.0, (), 0.0, 0)).is_void)
    return slices, are_void


def test_a_void_slice_is_taken_again() -> None:
    slices, are_void = taken([None, "others", None], spare_s=10.0)
    assert are_void == [False, False]
    assert slices.counts() == SliceCounts(judged=2, void=1, repeated=1)
    assert slices.last_why == "others"


def test_repeats_end_when_their_time_is_spent() -> None:
    slices, are_void = taken(["a", "b", "c", None], spare_s=1.5)
    assert are_void == [True, True, False]
    assert slices.counts() == SliceCounts(judged=1, void=3, repeated=1)


BEFORE = CoreUse(total_s=100.0, busy_s=50.0, steal_s=1.0, own_s={7: 20.0})


def test_cpu_time_of_our_pinned_threads_is_not_foreign() -> None:
    # One thread went on, one was born; 0.2 s of 10 are nobody's.
    own_s = {7: 25.0, 8: 2.8}
    assert why_foreign(BEFORE, CoreUse(110.0, 58.0, 1.0, own_s)) is None


def test_foreign_time_and_steal_are_reported_with_their_share() -> None:
    assert why_foreign(BEFORE, CoreUse(110.0, 59.0, 1.0, {7: 21.0})) == (
        "other threads used 80 % of the device's cores"
    )
    assert why_foreign(BEFORE, CoreUse(110.0, 55.0, 1.3, {7: 25.0})) == (
        "the machine's host took 3 % of the device's cores"
    )
    assert why_foreign(BEFORE, BEFORE) is None
