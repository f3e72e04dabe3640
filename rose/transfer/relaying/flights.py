"""Fetches that are under way, so that a chunk crosses once however many ask for it meanwhile."""

import threading
from collections.abc import Iterable
from concurrent.futures import Future
from typing import TypeAlias

from rose.errors import RoseError
from rose.transfer.manifest import UpdateKey

Place: TypeAlias = tuple[UpdateKey, int]  # an update, and a tile of it
# A chunk that somebody fetches: its frame, or None where it is kept no more.
Flight: TypeAlias = Future[bytes | None]


class Flights:
    """All that are under way. Any thread may call; the lock guards the table."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flights: dict[Place, Flight] = {}

    def begin(self, places: Iterable[Place]) -> tuple[list[Place], dict[Place, Flight]]:
        """Return the places that nobody fetches yet, and the flights of the others.

        The caller fetches the first, after another look whether they came meanwhile, and ends
        each by `land` or `fail`, whatever happens.
        """
        mine: list[Place] = []
        others: dict[Place, Flight] = {}
        with self._lock:
            for place in places:
                if (flight := self._flights.get(place)) is not None:
                    others[place] = flight
                else:
                    self._flights[place] = Future()
                    mine.append(place)
        return mine, others

    def land(self, place: Place, frame: bytes | None) -> None:
        """End a flight; the frame is where everybody finds it before this is called."""
        with self._lock:
            flight = self._flights.pop(place)
        flight.set_result(frame)

    def fail(self, places: Iterable[Place], error: RoseError) -> None:
        """End flights that did not come."""
        for place in places:
            with self._lock:
                flight = self._flights.pop(place)
            flight.set_exception(error)

    def __len__(self) -> int:
        with self._lock:
            return len(self._flights)
