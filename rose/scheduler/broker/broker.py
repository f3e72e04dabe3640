"""The broker: how much of which serving devices to borrow, for how long, and when more."""

import math
from collections.abc import Sequence
from typing import Final

from rose.errors import InvalidArgument
from rose.scheduler.broker.loan import Decision, Loan
from rose.scheduler.broker.observation import Reading
from rose.units import GIB

# The shortest loan lasts for three readings that come so often.
_READING_MS_MIN: Final = 5_000.0


class Broker:
    """Decides what to borrow. It has no thread, clock or randomness: equal calls, equal answers.

    It is not on serving's path. The executor on the device takes back what serving needs, at once
    and without asking; the broker reads of it and, where it is more than the ebb and flow of a
    loan, waits longer before it lends there again.

    What always holds:
    1. A loan that begins, grows or stays after a fit reading fits beside what serving's requests
       hold and its reserve.
    2. A reading under pressure makes a loan smaller; nothing begins or grows before its hold ends.
    3. Without a fit reading nothing begins, grows or is renewed.

    Args:
        loan_bytes_min: less is not worth the borrower's start.
        reading_ms: between two readings of a device; the shortest loan lasts for three.
    """

    def __init__(self, *, loan_bytes_min: int = GIB, reading_ms: float = _READING_MS_MIN) -> None:
        self._loan_bytes_min = loan_bytes_min
        self._reading_ms = max(reading_ms, _READING_MS_MIN)
        self._loans: dict[str, Loan] = {}
        self._decided_ms = -math.inf

    def decide(self, readings: Sequence[Reading], now_ms: float) -> list[Decision]:
        """Say what becomes of each device's loan.

        Args:
            readings: the newest of each device. One that is left out is neither lent nor renewed.
            now_ms: on a clock that never goes back.

        Returns:
            One decision for each reading, in the order of the devices' names.

        Raises:
            InvalidArgument: time goes back, or a device has two readings.
        """
        if not (math.isfinite(now_ms) and now_ms >= self._decided_ms):
            raise InvalidArgument(f"now is {now_ms} ms, after a decision at {self._decided_ms} ms")
        by_name = {reading.device.name: reading for reading in readings}
        if len(by_name) < len(readings):
            raise InvalidArgument("a device has two readings; give the newest")
        self._decided_ms = now_ms
        return [self._loan(by_name[name]).decide(by_name[name], now_ms) for name in sorted(by_name)]

    def _loan(self, reading: Reading) -> Loan:
        name = reading.device.name
        if name not in self._loans:
            self._loans[name] = Loan(
                reading.device, loan_bytes_min=self._loan_bytes_min, reading_ms=self._reading_ms
            )
        return self._loans[name]
