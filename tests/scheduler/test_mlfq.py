"""MLFQ: least served first, a level up after a tool, and no turn starves."""

import hypothesis.strategies as st
from hypothesis import given

from rose.scheduler import PlacementPolicy
from rose.scheduler.events import Start
from rose.scheduler.worker import TurnEnd
from tests.scheduler.rig import Rig, ended, progress

QUANTUM = 10
BLOCKER = 1000


class OneSeat(Rig):
    """A worker with one seat, and turns that wait for it."""

    def __init__(self, policy: PlacementPolicy = PlacementPolicy.MLFQ) -> None:
        super().__init__(policy, mlfq_quantum_tokens=QUANTUM, longest_first=0.0)
        self.join(0, seats=1)

    def serve(self, trajectory: int, tokens: int) -> None:
        """Run its first turn with `tokens` output tokens; a tool runs next."""
        self.end(self.run(trajectory, max_new=400), tokens)

    def end(self, start: Start, tokens: int = 1) -> list[Start]:
        news = [progress(start, 0, tokens)] if tokens else []
        actions = self.step(*news, ended(start, TurnEnd.FINISHED, tokens))
        return [one for one in actions if isinstance(one, Start)]

    def wait(self, trajectory: int, *, turn: int) -> None:
        self.now_ms += 1
        assert not any(isinstance(one, Start) for one in self.ready(trajectory, turn=turn))

    def order(self, blocker: Start) -> list[int]:
        """End the turn on the seat and each of its successors; return these in order."""
        order = []
        starts = self.end(blocker)
        while starts:
            (start,) = starts
            order.append(start.trajectory)
            starts = self.end(start)
        return order


def test_a_starved_turn_goes_before_all_levels() -> None:
    rig = OneSeat()
    rig.serve(1, 40 * QUANTUM)
    blocker = rig.run(BLOCKER)
    rig.wait(1, turn=1)
    rig.now_ms += 5000
    rig.wait(2, turn=0)
    assert rig.order(blocker) == [1, 2]


@st.composite
def _waiting(draw: st.DrawFn) -> list[int]:
    """Draw the output of each trajectory so far, in the order of their turns; 0 for a new one."""
    tokens = st.one_of(st.just(0), st.integers(1, 399))
    return draw(st.lists(tokens, min_size=1, max_size=12))


@given(served=_waiting())
def test_order_is_by_level_and_then_by_arrival(served: list[int]) -> None:
    rig = OneSeat()
    # Numbers descend in the order of arrival, so the order cannot follow from them.
    numbers = [len(served) - place for place in range(len(served))]
    for number, tokens in zip(numbers, served, strict=True):
        if tokens:
            rig.serve(number, tokens)
    blocker = rig.run(BLOCKER)
    for number, tokens in zip(numbers, served, strict=True):
        rig.wait(number, turn=1 if tokens else 0)

    def level(tokens: int) -> int:
        full, end = 0, QUANTUM
        while tokens >= end:
            full, end = full + 1, 2 * end
        return max(0, full - 1) if tokens else 0

    by_level = sorted(zip(numbers, served, strict=True), key=lambda each: level(each[1]))
    assert rig.order(blocker) == [number for number, _ in by_level]
