"""Reads every engine, asks the broker, and reads again."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from rose.clock import Clock
from rose.errors import CorruptData, InvalidArgument, Unavailable
from rose.scheduler.broker.broker import Broker
from rose.scheduler.broker.decision import Decision
from rose.scheduler.broker.endpoint import LIMITS, Endpoint, FetchLimits, endpoint_of, fetch_text
from rose.scheduler.broker.engine_reader import EngineReader
from rose.scheduler.broker.exposition import read_metrics
from rose.scheduler.broker.nvml import GpuMeter
from rose.scheduler.broker.observation import Reading, ServingDevice, Unread
from rose.units import MS_PER_S, NS_PER_MS

_FETCHES_MAX: Final = 16  # at once; more wait for each other


@dataclass(frozen=True, slots=True)
class PollSettings:
    """How often engines are asked.

    Args:
        period_ms: between two readings. To write a page takes an engine about half a millisecond,
            a hundredth of a percent of this; the executor does not wait for it.
        backoff_max_ms: an engine that failed is asked again later and later, up to so long.
        limits: of one page.
    """

    period_ms: float = 5_000.0
    backoff_max_ms: float = 60_000.0
    limits: FetchLimits = LIMITS


@dataclass(frozen=True, slots=True)
class PolledDevice:
    """A device whose engine is asked.

    Args:
        device: that the engine serves on.
        url: where it says how it is.
        gpu: its number on this machine, if NVML is to be asked too.
    """

    device: ServingDevice
    url: str
    gpu: int | None = None


class _Engine:
    """One engine, and how often in a row it has failed."""

    def __init__(self, polled: PolledDevice) -> None:
        self.polled = polled
        self.endpoint: Endpoint = endpoint_of(polled.url)
        self.reader = EngineReader(polled.device)
        self.failures = 0
        self.again_ms = float("-inf")
        self.why = ""


class BrokerPoller:
    """Drives a broker with what engines say.

    An engine that cannot be read, or makes no sense, is a device on which nothing is lent anew; the
    decision says why. One thread calls it; pages are fetched by threads of its own, which `close`
    joins.
    """

    def __init__(
        self,
        devices: Sequence[PolledDevice],
        broker: Broker,
        *,
        clock: Clock,
        day_minute: Callable[[], int],
        meter: GpuMeter | None = None,
        settings: PollSettings | None = None,
    ) -> None:
        """Ask nobody yet.

        Args:
            devices: each with its engine.
            broker: that decides; nobody else asks it.
            clock: of readings and decisions.
            day_minute: the minute of the day, for the caps of owners.
            meter: of this machine's GPUs.
            settings: how often.

        Raises:
            InvalidArgument: a URL is none, or two devices have one name.
        """
        names = [one.device.name for one in devices]
        if len(set(names)) < len(names):
            raise InvalidArgument("two polled devices have one name; name each differently")
        self._engines = [_Engine(one) for one in devices]
        self._broker = broker
        self._clock = clock
        self._day_minute = day_minute
        self._meter = meter
        self._settings = settings or PollSettings()
        self._threads = ThreadPoolExecutor(
            max_workers=max(1, min(_FETCHES_MAX, len(self._engines))),
            thread_name_prefix="rose-broker",
        )

    def poll(self, *, wanted_bytes: int | None = None) -> list[Decision]:
        """Read every engine once and decide; takes as long as the slowest, within its limits.

        Args:
            wanted_bytes: that rollouts can use; None for all there is.
        """
        readings = list(self._threads.map(self._read, self._engines))
        return self._broker.decide(
            readings, self._now_ms(), day_minute=self._day_minute(), wanted_bytes=wanted_bytes
        )

    def run(self, on_decisions: Callable[[list[Decision]], None], stop: threading.Event) -> None:
        """Poll until `stop` is set; a poll that takes longer than the period delays the next.

        Args:
            on_decisions: is called after each poll, in this thread; must not raise.
            stop: ends it within one poll.
        """
        while not stop.is_set():
            began_ms = self._now_ms()
            on_decisions(self.poll())
            rest_ms = began_ms + self._settings.period_ms - self._now_ms()
            stop.wait(timeout=max(0.0, rest_ms) / MS_PER_S)

    def close(self) -> None:
        """End the threads; a page that is being fetched is waited for, within its limits."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _now_ms(self) -> float:
        return self._clock.now_ns() / NS_PER_MS

    def _read(self, engine: _Engine) -> Reading:
        device, now_ms = engine.polled.device, self._now_ms()
        if now_ms < engine.again_ms:
            return Unread(device, engine.why)
        try:
            said = read_metrics(
                fetch_text(engine.endpoint, self._clock, limits=self._settings.limits)
            )
        except (Unavailable, CorruptData) as error:
            return self._failed(engine, str(error))
        engine.failures = 0
        gpu = engine.polled.gpu
        use = None if self._meter is None or gpu is None else self._meter.use(gpu)
        return engine.reader.observe(said, self._now_ms(), use=use)

    def _failed(self, engine: _Engine, why: str) -> Unread:
        settings = self._settings
        wait_ms = min(settings.backoff_max_ms, settings.period_ms * 2 ** min(engine.failures, 30))
        engine.failures += 1
        # A little less than a period would already skip the next poll.
        engine.again_ms = self._now_ms() + wait_ms - settings.period_ms / 2
        engine.why = why
        return Unread(engine.polled.device, why)
