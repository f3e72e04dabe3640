"""A device under rose: both engines, the broker, and the counts of each slice."""

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from typing import Final, TypeVar

from rose.clock import Clock
from rose.closing import Closing
from rose.engines.transformers import rollout_engine, serving_engine
from rose.errors import DeadlineExceeded
from rose.executor import CoServing
from rose.executor.revocation import Cause
from rose.memory import choose_slab_bytes
from rose.slo import SLO
from rose_lab.broker import Decision
from rose_lab.broker.lending import BrokeredDevice, LendingLoop
from rose_lab.demo.record import BrokerRecord, LendingRecord, RevocationRecord, Slice
from rose_lab.demo.replay import CountIn
from rose_lab.demo.schemes import Scheme
from rose_lab.demo.settings import (
    LAYERS_PER_SEGMENT,
    POOL_BYTES,
    REQUEST_TOKENS,
    RESERVE_BYTES,
    BenchSettings,
    Tenant,
)

# A slice of a quick run lasts 4 s; at least one reading must fall into it.
_PERIOD_MS: Final = 1000.0


class Brokered(Closing):
    """A device whose lending cap is set by a broker with default settings.

    The demo's pool is smaller than the broker's default minimum loan; here the minimum is one slab.
    Lifecycle: constructor (nothing is lent yet) → `start` → `record` → `close`.
    """

    def __init__(self, device: CoServing, clock: Clock) -> None:
        """Decide once, before `device` has a borrower."""
        reading = device.reading()
        self._device = device
        self._pool_bytes = reading.pool_bytes
        self._decisions: list[tuple[Decision, int]] = []
        self._loop = LendingLoop(
            [BrokeredDevice("demo", device)],
            loan_bytes_min=reading.slab_bytes,
            on_decisions=self._note,
            clock=clock,
            period_ms=_PERIOD_MS,
        )
        self._note(self._loop.poll())

    def start(self) -> None:
        """Start to decide once a second."""
        self._loop.start()

    def record(self) -> BrokerRecord:
        """Return the decisions so far."""
        return BrokerRecord(self._pool_bytes, tuple(self._decisions))

    def close(self) -> None:
        """Stop deciding; the last cap expires."""
        self._loop.close()

    def _note(self, decisions: list[Decision]) -> None:
        lent_bytes = self._device.lender.lent_slabs * self._device.arbiter.slab_bytes
        self._decisions += [(one, lent_bytes) for one in decisions]


T = TypeVar("T", int, float)

# Four times as long as the warm-up takes on two slow cores.
_EVIDENCE_MS: Final = 60_000.0


class RoseDevice:
    """A device that lends by one of rose's schemes, fixed when the device is opened.

    Lifecycle: constructor → `warm_up` → slices; the stack `owned` ends everything.
    """

    def __init__(
        self,
        scheme: Scheme,
        tenants: tuple[Tenant, Tenant],
        slo: SLO,
        settings: BenchSettings,
        clock: Clock,
        *,
        owned: ExitStack,
    ) -> None:
        """Open the device and build both engines without starting them."""
        serving, borrower = tenants
        self.log_path = settings.log_path(scheme.name)
        self.device = owned.enter_context(
            CoServing.open(
                settings.device,
                pool_bytes=POOL_BYTES,
                slab_bytes=choose_slab_bytes(serving.kv, borrower.kv),
                log_path=self.log_path,
                policy=replace(settings.policy, without=scheme.without),
            )
        )
        self.lane = self.device.serving(
            serving.kv,
            slo=slo if scheme.slowdown is None else replace(slo, slowdown=scheme.slowdown),
            reserve_bytes=RESERVE_BYTES,
            step_tokens=serving.config.max_batch_tokens,
            request_tokens=REQUEST_TOKENS,
        )
        self.broker = Brokered(self.device, clock) if settings.has_broker else None
        self.serving = serving_engine(serving.model, self.lane, serving.config)
        owned.callback(self.serving.stop)
        self.rollouts = rollout_engine(
            borrower.model,
            self.device.rollout(borrower.kv, limit_bytes=POOL_BYTES),
            borrower.config,
            layers_per_segment=LAYERS_PER_SEGMENT,
        )
        owned.callback(self.rollouts.stop)
        if self.broker is not None:
            owned.callback(self.broker.close)
        self._refusals: Counter[str] = Counter()
        self._refused_s: Counter[str] = Counter()
        self._granted_s = 0.0

    def warm_up(self, on_progress: Callable[[int, int], None]) -> None:
        """Start serving, and collect the evidence for certificates."""
        self.serving.start()
        if self.serving.prober is not None:
            # After a timeout, probes continue in later slices, and refusals are counted.
            with suppress(DeadlineExceeded):
                self.serving.prober.warm_up(timeout_ms=_EVIDENCE_MS, on_progress=on_progress)
            self.serving.prober.stop()

    def watch(self) -> CountIn:
        """Start a slice; return the function that adds the counts of this slice to it."""
        self.device.gate.drain_segments_ms()
        self.lane.blocked_ms.clear()
        was, pauses = self.device.reading(), self.device.gate.stats().pauses

        def count_in(found: Slice) -> Slice:
            now = self.device.reading()
            if found.round >= 0:
                self._refusals.update(_since(now.refusals, was.refusals))
                self._refused_s.update(_since(now.refused_s, was.refused_s))
                self._granted_s += now.granted_s - was.granted_s
            return replace(
                found,
                segment_ms=tuple(self.device.gate.drain_segments_ms()),
                blocked_ms=tuple(self.lane.blocked_ms),
                pauses=self.device.gate.stats().pauses - pauses,
            )

        return count_in

    def lending(self) -> LendingRecord:
        """Return grants and refusals of the device's slices, with the last refusal's cause."""
        binding = self.device.reading().binding
        return LendingRecord(
            refusals=dict(self._refusals),
            refused_s=dict(self._refused_s),
            granted_s=self._granted_s,
            binding=None if binding is None else {**asdict(binding), "sentence": binding.sentence},
        )

    def revocations(self) -> tuple[RevocationRecord, ...]:
        """Return the revocations that serving's need for memory caused."""
        return tuple(
            RevocationRecord(one.latency_ms, one.aborted_steps)
            for one in self.device.lender.collector.history
            if one.cause is Cause.PRESSURE
        )


def _since(now: Mapping[str, T], was: Mapping[str, T]) -> dict[str, T]:
    return {name: value - was.get(name, 0) for name, value in now.items()}
