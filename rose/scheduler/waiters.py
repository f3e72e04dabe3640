"""Who waits for what becomes of a trajectory."""

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Final

from rose.errors import RoseError
from rose.scheduler.events import Admit
from rose.scheduler.state import Gone, Outcome
from rose.scheduler.turns import TrajectoryDropped, TurnResult

# Stands for the turn of those who wait for a trajectory to be admitted.
ADMISSION: Final = -1
# Stands for the trajectory of those who wait for the next step.
STEP: Final = -1


class Waiters:
    """Futures by trajectory and turn; each caller has its own, so one may leave alone."""

    def __init__(self) -> None:
        self._waiting: dict[int, list[tuple[int, asyncio.Future[Any]]]] = defaultdict(list)

    def add(self, trajectory: int, turn: int, future: asyncio.Future[Any]) -> None:
        """Let a future wait; it leaves by itself when its caller does."""
        self._waiting[trajectory].append((turn, future))

    def leave(self, trajectory: int, turn: int, future: asyncio.Future[Any]) -> None:
        """Forget a future, if it is still there."""
        left = [one for one in self._waiting.pop(trajectory, ()) if one != (turn, future)]
        if left:
            self._waiting[trajectory] = left

    def tell(self, outcome: Outcome) -> None:
        """Tell those who waited for it."""
        match outcome:
            case Admit():
                self._resolve(outcome.trajectory, ADMISSION, None)
            case TurnResult():
                self._resolve(outcome.trajectory, outcome.turn, outcome)
            case Gone():
                error = "" if outcome.error is None else f" ({outcome.error})"
                why = outcome.reason.value + error
                said = TrajectoryDropped(f"trajectory {outcome.trajectory} was dropped: {why}")
                _refuse(self._waiting.pop(outcome.trajectory, ()), said)

    def tell_stepped(self) -> None:
        """Tell those who waited for a step."""
        self._resolve(STEP, 0, None)

    def fail_all(self, error: RoseError) -> None:
        """Tell everybody that there will be no answer."""
        for waiting in self._waiting.values():
            _refuse(waiting, error)
        self._waiting.clear()

    def _resolve(self, trajectory: int, turn: int, value: TurnResult | None) -> None:
        for asked, future in self._waiting.get(trajectory, ()):
            if asked == turn and not future.done():
                future.set_result(value)  # Its caller wakes, and leaves.


def _refuse(waiting: Iterable[tuple[int, asyncio.Future[Any]]], error: RoseError) -> None:
    for _, future in waiting:
        if not future.done():
            # One exception each: raising it changes it.
            future.set_exception(type(error)(*error.args))
