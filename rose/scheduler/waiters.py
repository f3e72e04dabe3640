"""Callers that wait for outcomes of trajectories."""

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Final

from rose.errors import RoseError
from rose.scheduler.events import Admit, DropReason
from rose.scheduler.state import Gone, Outcome
from rose.scheduler.turns import TrajectoryDropped, TurnLost, TurnRefused, TurnResult
from rose.scheduler.versions import VersionConflict

# Turn number under which callers wait for admission.
ADMISSION: Final = -1
# Trajectory number under which callers wait for the next step.
STEP: Final = -1


class Waiters:
    """Futures by trajectory and turn.

    Each caller has a future of its own, so cancelling one caller does not affect the others.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, list[tuple[int, asyncio.Future[Any]]]] = defaultdict(list)

    def add(self, trajectory: int, turn: int, future: asyncio.Future[Any]) -> None:
        """Add a future; its caller removes it."""
        self._waiting[trajectory].append((turn, future))

    def leave(self, trajectory: int, turn: int, future: asyncio.Future[Any]) -> None:
        """Remove a future, if it is still there."""
        left = [one for one in self._waiting.pop(trajectory, ()) if one != (turn, future)]
        if left:
            self._waiting[trajectory] = left

    def resolve(self, outcome: Outcome) -> None:
        """Resolve or fail the futures that wait for an outcome."""
        match outcome:
            case Admit():
                self._resolve(outcome.trajectory, ADMISSION, None)
            case TurnResult():
                self._resolve(outcome.trajectory, outcome.turn, outcome)
            case Gone():
                _refuse(self._waiting.pop(outcome.trajectory, ()), _error_of(outcome))

    def resolve_step(self) -> None:
        """Resolve the futures that wait for a step."""
        self._resolve(STEP, 0, None)

    def fail_all(self, error: RoseError) -> None:
        """Fail all futures."""
        for waiting in self._waiting.values():
            _refuse(waiting, error)
        self._waiting.clear()

    def _resolve(self, trajectory: int, turn: int, value: TurnResult | None) -> None:
        for asked, future in self._waiting.get(trajectory, ()):
            if asked == turn and not future.done():
                future.set_result(value)  # Its caller wakes, and removes it.


def _error_of(gone: Gone) -> RoseError:
    """Return the error for callers that wait for a dropped trajectory."""
    error = "" if gone.error is None else f" ({gone.error})"
    text = f"trajectory {gone.trajectory} was dropped: {gone.reason.value}{error}"
    match gone.reason:
        case DropReason.VERSION:
            return VersionConflict(gone.error or text)
        case DropReason.REFUSED:
            return TurnRefused(gone.error or text)
        case DropReason.LOST:
            return TurnLost(text)
        case _:
            return TrajectoryDropped(text)


def _refuse(waiting: Iterable[tuple[int, asyncio.Future[Any]]], error: RoseError) -> None:
    for _, future in waiting:
        if not future.done():
            # A separate exception for each future, because raising an exception changes it.
            future.set_exception(type(error)(*error.args))
