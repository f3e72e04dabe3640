"""Arms in short slices: round by round, in an order that turns, and again where one was void."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from rose.clock import Clock
from rose.demo.record import Slice, SliceCounts
from rose.units import NS_PER_S

T = TypeVar("T")
WhyVoid = Callable[[], str | None]


def in_turn(arms: Sequence[T], number: int) -> list[T]:
    """Return the order of the arms in a round: each is first as often as any other."""
    turn = number % len(arms)
    return [*arms[turn:], *arms[:turn]]


class Slices:
    """Takes slices; a void one is taken again while there is time for it.

    Args:
        watch: begins to watch the device; its answer says why the time since then is void.
        clock: where time comes from.
        spare_s: for all slices that are taken again.
    """

    def __init__(self, watch: Callable[[], WhyVoid], clock: Clock, *, spare_s: float) -> None:
        self._watch = watch
        self._clock = clock
        self._spare_s = spare_s
        self._judged = self._void = self._repeated = 0
        self.last_why: str | None = None

    def take(self, run: Callable[[], Slice]) -> Slice:
        """Run a slice until one is not void; return the last, void if there was no time left."""
        while True:
            began_ns, why_void = self._clock.now_ns(), self._watch()
            result = run()
            why = why_void()
            if why is None:
                self._judged += 1
                return result
            self._void += 1
            self.last_why = why
            self._spare_s -= (self._clock.now_ns() - began_ns) / NS_PER_S
            if self._spare_s < 0:
                return replace(result, is_void=True)
            self._repeated += 1

    def counts(self) -> SliceCounts:
        """Return how many slices were judged, void and repeated."""
        return SliceCounts(self._judged, self._void, self._repeated)
