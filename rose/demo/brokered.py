"""The broker of the arm `rose`: it decides how much the device lends, and what it said is kept."""

from typing import Final

from rose.clock import Clock
from rose.closing import Closing
from rose.demo.record import BrokerRecord, DecisionRecord
from rose.executor import CoServing
from rose.node.lending import BrokeredDevice, LendingLoop
from rose.scheduler.broker import Decision
from rose.units import NS_PER_S

# A window of a quick run lasts 2.5 s, and is to be seen in one reading at least.
_PERIOD_MS: Final = 1000.0


class Brokered(Closing):
    """A device that lends what a broker decides, with the broker's defaults.

    The pool of a demo is smaller than the least loan of production, so a loan is a slab at least.
    Its life: made, nothing is lent yet → `start` → `record` → `close`.
    """

    def __init__(self, device: CoServing, clock: Clock) -> None:
        """Decide once, before there is a borrower.

        Args:
            device: with its serving engine.
            clock: where time comes from.
        """
        said = device.reading()
        self._device = device
        self._clock = clock
        self._pool_bytes = said.pool_bytes
        self._decisions: list[DecisionRecord] = []
        self._loop = LendingLoop(
            [BrokeredDevice("demo", device)],
            loan_bytes_min=said.slab_bytes,
            on_decisions=self._note,
            clock=clock,
            period_ms=_PERIOD_MS,
        )
        self._note(self._loop.poll())

    def start(self) -> None:
        """Decide once a second from now on."""
        self._loop.start()

    def record(self) -> BrokerRecord:
        """Say what was decided so far."""
        return BrokerRecord(self._pool_bytes, tuple(self._decisions))

    def close(self) -> None:
        """Decide no more; the last cap runs out."""
        self._loop.close()

    def _note(self, decisions: list[Decision]) -> None:
        now_s = self._clock.now_ns() / NS_PER_S
        lent_bytes = len(self._device.lender.lent_slabs()) * self._device.arbiter.slab_bytes
        for one in decisions:
            self._decisions.append(
                DecisionRecord(
                    at_s=now_s,
                    move=one.move.name,
                    cap_bytes=one.lend_bytes,
                    lent_bytes=lent_bytes,
                    why=one.why,
                )
            )
