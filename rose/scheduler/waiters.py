"""Who waits for what becomes of a trajectory."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

from rose.errors import RoseError
from rose.scheduler.events import Admit
from rose.scheduler.state import Gone, Outcome
from rose.scheduler.turns import TrajectoryDropped, TurnResult

# Stands for the turn of those who wait for a trajectory to be admitted.
ADMISSION: Final = -1


class Waiters:
    """Futures by trajectory and turn; each caller has its own, so one may leave alone."""

    def __init__(self) -> None:
        self._futures: dict[int, dict[int, list[asyncio.Future[Any]]]] = defaultdict(dict)

    def add(self, trajectory: int, turn: int, future: asyncio.Future[Any]) -> None:
        """Let a future wait; it leaves by itself when its caller does."""
        self._futures[trajectory].setdefault(turn, []).append(future)

    def leave(self, trajectory: int, turn: int, future: asyncio.Future[Any]) -> None:
        """Forget a future, if it is still there."""
        turns = self._futures.get(trajectory, {})
        waiting = turns.get(turn, [])
        if future in waiting:
            waiting.remove(future)
        if not waiting:
            turns.pop(turn, None)
        if not turns:
            self._futures.pop(trajectory, None)

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
                turns = self._futures.pop(outcome.trajectory, {})
                _refuse([one for waiting in turns.values() for one in waiting], said)

    def fail_all(self, error: RoseError) -> None:
        """Tell everybody that there will be no answer."""
        left, self._futures = self._futures, defaultdict(dict)
        for turns in left.values():
            _refuse([one for waiting in turns.values() for one in waiting], error)

    def _resolve(self, trajectory: int, turn: int, value: TurnResult | None) -> None:
        turns = self._futures.get(trajectory, {})
        for future in turns.pop(turn, []):
            if not future.done():
                future.set_result(value)
        if not turns:
            self._futures.pop(trajectory, None)


def _refuse(futures: Sequence[asyncio.Future[Any]], error: RoseError) -> None:
    for future in futures:
        if not future.done():
            # One exception each: raising it changes it.
            future.set_exception(type(error)(*error.args))
