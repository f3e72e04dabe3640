"""Fetches that are under way, so that a chunk crosses once however many ask for it meanwhile."""

import threading
from collections.abc import Iterable
from typing import TypeAlias

from rose.errors import DeadlineExceeded, RoseError
from rose.transfer.manifest import UpdateKey

Place: TypeAlias = tuple[UpdateKey, int]  # an update, and a tile of it


class Flight:
    """One chunk that somebody fetches: it lands with a frame, or with the word that there is none.

    Any thread waits; the one that fetches ends it, once.
    """

    def __init__(self) -> None:
        self._is_over = threading.Event()
        self._frame: bytes | None = None
        self._error: RoseError | None = None

    def land(self, frame: bytes | None) -> None:
        """Hand the frame to whoever waits; None: it is kept no more."""
        self._frame = frame
        self._is_over.set()

    def fail(self, error: RoseError) -> None:
        """Tell whoever waits why it does not come."""
        self._error = error
        self._is_over.set()

    def frame(self, timeout_s: float) -> bytes | None:
        """Wait for it.

        Raises:
            DeadlineExceeded: it did not come in time.
            RoseError: as the one that fetches it met.
        """
        if not self._is_over.wait(timeout_s):
            raise DeadlineExceeded(f"a chunk that is fetched did not come within {timeout_s} s")
        if self._error is not None:
            raise type(self._error)(str(self._error))
        return self._frame


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
                    self._flights[place] = Flight()
                    mine.append(place)
        return mine, others

    def land(self, place: Place, frame: bytes | None) -> None:
        """End a flight; the frame is where everybody finds it before this is called."""
        with self._lock:
            flight = self._flights.pop(place)
        flight.land(frame)

    def fail(self, places: Iterable[Place], error: RoseError) -> None:
        """End flights that did not come."""
        for place in places:
            with self._lock:
                flight = self._flights.pop(place)
            flight.fail(error)

    def __len__(self) -> int:
        with self._lock:
            return len(self._flights)
