"""Faults of a borrowed worker: it is stopped, revoked and killed again and again."""

import os
import random
import signal
import threading
from collections import Counter
from itertools import count
from typing import Final

from fleet import Fleet
from typing_extensions import Self

from rose.executor.messages import SetLimit
from rose.executor.observing import ask_device
from rose.scheduler.worker import WorkerKind

BETWEEN_S: Final = (2.0, 6.0)
STOP_S: Final = 1.0
ANSWER_S: Final = 60.0


class Chaos:
    """Disturbs the borrower of a fleet from entry to exit.

    Args:
        fleet: a fleet that lends.
        seed: seed of the times between faults.
    """

    def __init__(self, fleet: Fleet, seed: int) -> None:
        self._fleet, self._draw = fleet, random.Random(seed)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.faults: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._is_over.set()
        self._thread.join(2 * ANSWER_S)

    def _run(self) -> None:
        both = self._stop, self._revoke
        faults = (*both, self._kill, *both, *both)
        for number in count():
            if self._is_over.wait(self._draw.uniform(*BETWEEN_S)):
                return
            fault = faults[number % len(faults)]
            fault()
            self.faults[fault.__name__.strip("_")] += 1

    def _signal(self, *numbers: signal.Signals) -> None:
        pid = self._fleet.pid(WorkerKind.BORROWED)
        for number in numbers if pid is not None else ():
            os.kill(pid, number)
            self._is_over.wait(STOP_S if number is signal.SIGSTOP else 0.0)

    def _stop(self) -> None:
        self._signal(signal.SIGSTOP, signal.SIGCONT)

    def _revoke(self) -> None:
        """Take all loans back, and allow them again, as an operator does."""
        for share in (0.0, 1.0):
            ask_device(str(self._fleet.socket), SetLimit(share), timeout_s=ANSWER_S)
            self._is_over.wait(STOP_S if share == 0.0 else 0.0)

    def _kill(self) -> None:
        """Kill the process; the fleet starts another."""
        self._signal(signal.SIGKILL)
