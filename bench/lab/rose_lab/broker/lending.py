"""Let brokers control how much the devices of one process lend."""

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rose.clock import BootClock, Clock
from rose.closing import Closing
from rose.errors import InvalidArgument, RoseError, sentence
from rose.executor import CoServing
from rose.executor.reading import DeviceReading, TokenCounts
from rose.executor.safety import Safety
from rose.thread import Thread
from rose.units import GIB, MS_PER_S, NS_PER_MS, NS_PER_S
from rose_lab.broker import Broker, Decision, Reading, ServingDevice, Unread
from rose_lab.broker.engine_reader import EngineMetrics, EngineReader, LatencyHistogram


@dataclass(frozen=True, slots=True)
class BrokeredDevice:
    """A device whose loans a broker controls.

    Args:
        name: unique name.
        device: device with a serving engine; only the loop may cap the device's loans.
    """

    name: str
    device: CoServing


class LendingLoop(Closing):
    """Lets a broker for each device decide how much the device lends.

    In each period the loop reads every device and asks its broker. Each decision, with its
    lifetime, becomes the device's cap (`CoServing.lend_at_most`). Serving never waits for the loop.

    Life: made → `start` → … → `close`. After `close` each cap stays until it expires; then the
    device lends nothing until it gets a new cap. After a failure in the loop all devices give
    everything back (`CoServing.gave_back` holds the reason).
    """

    def __init__(
        self,
        devices: Sequence[BrokeredDevice],
        *,
        loan_bytes_min: int = GIB,
        on_decisions: Callable[[list[Decision]], None] = lambda _: None,
        clock: Clock | None = None,
        period_ms: float = 5_000.0,
    ) -> None:
        """Read the sizes of every device; this sets no cap yet.

        Args:
            devices: devices of this process, in any order.
            loan_bytes_min: smallest loan that is worth a borrower's start.
            on_decisions: called after each round in the loop's thread, for logs and metrics; an
                exception from it counts as a failure of the loop.
            clock: time source of readings and decisions.
            period_ms: time between two rounds, > 0. The shortest loan lasts three periods, and at
                least 15 s.

        Raises:
            InvalidArgument: two devices have the same name, a device has no serving engine or is
                closed, or `period_ms` is not above 0.
            Unavailable: rose has failed on a device.
        """
        self._devices = {
            one.name: _Device(one, loan_bytes_min=loan_bytes_min, period_ms=period_ms)
            for one in devices
        }
        if len(self._devices) < len(devices):
            names = ", ".join(one.name for one in devices)
            raise InvalidArgument(f"devices must have different names, got {names}")
        if not (math.isfinite(period_ms) and period_ms > 0):
            raise InvalidArgument(f"period_ms must be finite and above 0, got {period_ms}")
        self._on_decisions = on_decisions
        self._clock = clock or BootClock()
        self._period_ms = period_ms
        self._safety = Safety(self._give_back)
        self._stop = threading.Event()
        self._thread = Thread(self._run, name="rose-lending", on_failure=self._safety.report)

    def start(self) -> None:
        """Start the thread; its first round runs at once."""
        self._thread.start()

    def poll(self) -> list[Decision]:
        """Run one round: read, decide and cap. Call it only while the thread is not running."""
        return [one.poll(self._now_ms()) for one in self._devices.values()]

    def close(self) -> None:
        """End the thread within one round. Idempotent."""
        self._stop.set()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set() and self._safety.cause is None:
            began_ms = self._now_ms()
            with self._safety:
                self._on_decisions(self.poll())
            rest_ms = began_ms + self._period_ms - self._now_ms()
            self._stop.wait(max(0.0, rest_ms) / MS_PER_S)

    def _now_ms(self) -> float:
        return self._clock.now_ns() / NS_PER_MS

    def _give_back(self, cause: BaseException) -> None:
        for one in self._devices.values():
            one.give_back(cause)


class _Device:
    """One device with its broker and its previous reading."""

    def __init__(self, brokered: BrokeredDevice, *, loan_bytes_min: int, period_ms: float) -> None:
        self._device = brokered.device
        reading = self._device.reading()
        self._as_serving = ServingDevice(
            name=brokered.name,
            kv_bytes=reading.pool_bytes,
            reserve_bytes=reading.reserve_bytes,
            slab_bytes=reading.slab_bytes,
            slo=reading.slo,
        )
        self._reader = EngineReader(self._as_serving)
        self._broker = Broker(self._as_serving, loan_bytes_min=loan_bytes_min, reading_ms=period_ms)
        self._revocations = reading.revocations

    def poll(self, now_ms: float) -> Decision:
        decision = self._broker.decide(self._read(now_ms), now_ms)
        self._device.lend_at_most(decision.lend_bytes, ttl_ms=decision.ttl_ms)
        return decision

    def _read(self, now_ms: float) -> Reading:
        try:
            reading = self._device.reading()
        except RoseError as error:
            return Unread(self._as_serving, sentence(error))
        seen = self._reader.observe(_metrics(reading), now_ms)
        since, self._revocations = self._revocations, reading.revocations
        return replace(
            seen,
            lent_bytes=reading.lent_bytes,
            revocations=reading.revocations,
            revoked_share=reading.fallen_share(since),
        )

    def give_back(self, cause: BaseException) -> None:
        self._device.safety.report(cause)


def _metrics(reading: DeviceReading) -> EngineMetrics:
    """Convert a device reading to engine metrics."""
    return EngineMetrics(
        engine="rose",
        model="",
        kv_used=reading.used_share,
        kv_tokens=None,
        running=reading.running,
        waiting=reading.waiting,
        preempted=0,  # Engines do not report preemptions; `kv_used` shows a shortage of blocks.
        ttft=_histogram(reading.first_tokens),
        tpot=_histogram(reading.later_tokens),
    )


def _histogram(counts: TokenCounts) -> LatencyHistogram:
    *ends, (_, total) = counts
    bounds_s = [upper_ns / NS_PER_S for upper_ns, _ in ends]
    return LatencyHistogram((*bounds_s, math.inf), (*(count for _, count in ends), total))
