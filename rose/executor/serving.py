"""Serving's lane: nothing in here raises, waits without a bound, or holds serving up."""

import threading
from collections import deque
from dataclasses import dataclass
from types import TracebackType
from typing import Final

from typing_extensions import Self

from rose._core import CertificateLog, Clock, HostGate, LatencyModel, ServingState, Watchdog
from rose.errors import check
from rose.events import Reason, Refusal
from rose.executor.blocking import Blocking
from rose.executor.demand import Demand
from rose.executor.lender import Lender
from rose.executor.safety import Safety
from rose.executor.ticket import Ticket
from rose.memory import KVSpace
from rose.slo import Policy
from rose.units import NS_PER_MS

# Waits that are kept for reports.
_BLOCKED_KEPT: Final = 65_536
# What a step that no request was announced for runs under: it closes the gate as one would.
_STEP: Final = "rose: a step without a request"


@dataclass(frozen=True, slots=True)
class StepBatch:
    """What a serving step does: the features of the latency model.

    Args:
        decode_sequences: sequences that get one token.
        context_tokens: KV tokens that are read, over all sequences.
        prefill_tokens: prompt tokens that are processed.
    """

    decode_sequences: int
    context_tokens: int
    prefill_tokens: int


class ServingStep:
    """Protected work: entered when the borrower is parked, left when the step has ended."""

    __slots__ = ("_began_ns", "_lane", "batch")

    def __init__(self, lane: "ServingLane", batch: StepBatch | None) -> None:
        """Made by `ServingLane.step`; `batch` may be set later, before the step ends."""
        self._lane = lane
        self._began_ns = 0
        self.batch = batch

    def __enter__(self) -> Self:
        """Wait, for a bounded time, until no rollout segment runs."""
        self._began_ns = self._lane.begin_step()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        failure: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """Learn how long the step took, and check that serving's memory is safe."""
        if failure is None and self.batch is not None:
            self._lane.end_step(self.batch, self._began_ns)
        self._lane.finished(_STEP)


class ServingLane:
    """What a serving engine calls. Any thread may call any method.

    When rose fails, every method turns into the answer of a device without borrowers.
    """

    def __init__(
        self,
        *,
        kv: KVSpace,
        gate: HostGate,
        state: ServingState,
        model: LatencyModel,
        demand: Demand,
        log: CertificateLog,
        lender: Lender,
        safety: Safety,
        watchdog: Watchdog,
        policy: Policy,
        clock: Clock,
        stream: int | None,
    ) -> None:
        """Made by `CoServing.serving`; `stream` is what its GPU work must be put into."""
        self.kv = kv
        self.stream = stream
        self.blocked_ms: deque[float] = deque(maxlen=_BLOCKED_KEPT)
        self._lock = threading.Lock()  # Guards `_live`, together with the count in `state`.
        self._live: set[str] = set()
        self._stuck_at: int | None = None
        self._gate = gate
        self._state = state
        self._model = model
        self._demand = demand
        self._log = log
        self._lender = lender
        self._safety = safety
        self._watchdog = watchdog
        self._policy = policy
        self._clock = clock

    # ---- requests -------------------------------------------------------------------------------

    def arrived(self, request_id: str, *, prompt_tokens: int) -> None:
        """Say that a request is here, as early as possible: this closes the gate.

        Args:
            request_id: unique among live requests.
            prompt_tokens: length of its prompt.
        """
        with self._safety, self._lock:
            if request_id not in self._live:
                self._live.add(request_id)
                self._state.arrived(tokens=prompt_tokens)
                if request_id != _STEP:
                    self._demand.arrived(prompt_tokens=prompt_tokens)
                self._lender.load_changed()

    def emitted(self, request_id: str) -> None:
        """Say that a token of the request went out: serving's host is alive.

        Args:
            request_id: a request that has arrived.
        """
        with self._safety:
            if request_id in self._live:
                self._state.beat()

    def finished(self, request_id: str) -> None:
        """Say that the request is over; after the last one rollouts may be granted a quantum.

        An id that is not live is passed over, so an engine may say it twice.
        """
        with self._safety, self._lock:
            if request_id in self._live:
                self._live.discard(request_id)
                check(self._state.finished(), "serving has fewer requests than live ids")
                self._lender.load_changed()

    # ---- steps ----------------------------------------------------------------------------------

    def step(self, batch: StepBatch | None = None) -> ServingStep:
        """Protect one engine step: `with serving.step(batch): run()`."""
        return ServingStep(self, batch)

    def blocking(self) -> Blocking:
        """Declare a call that may wait for the whole device: `with serving.blocking(): free()`."""
        return Blocking(self._watchdog, self._safety)

    def begin_step(self) -> int:
        """Make sure that the device is serving's; returns when the step began, in nanoseconds.

        A segment that did not end in time is waited for once, not at every step.
        """
        if not self._live:
            self.arrived(_STEP, prompt_tokens=0)
        with self._safety:
            segment = self._gate.passed
            if self._gate.is_running() and segment != self._stuck_at:
                blocked_ms = self._gate.wait_parked(timeout_ms=self._policy.park_wait_ms)
                self._stuck_at = segment if blocked_ms is None else None
                self.blocked_ms.append(
                    self._policy.park_wait_ms if blocked_ms is None else blocked_ms
                )
        return self._clock.now_ns()

    def end_step(self, batch: StepBatch, began_ns: int) -> None:
        """Feed the latency model and re-check serving's memory."""
        with self._safety:
            actual_ms = (self._clock.now_ns() - began_ns) / NS_PER_MS
            features = {
                "decode_sequences": batch.decode_sequences,
                "context_tokens": batch.context_tokens,
                "prefill_tokens": batch.prefill_tokens,
            }
            forecast = self._model.observe(actual_ms, **features)
            self._log.append_step(forecast, actual_ms=actual_ms, **features)
            self._demand.step_ended(
                forecast,
                actual_ms,
                decode_sequences=batch.decode_sequences,
                prefill_tokens=batch.prefill_tokens,
            )
            self._lender.recheck()

    # ---- memory ---------------------------------------------------------------------------------

    def ensure(self, blocks: int) -> bool:
        """Have `blocks` free blocks, taking slabs back if need be; waits at most T_revoke."""
        missing = blocks - self.kv.allocator.free_blocks
        if missing > 0:
            with self._safety:
                self._lender.reclaim(missing)
        return bool(self.kv.allocator.free_blocks >= blocks)

    def alloc(self, blocks: int) -> list[int] | None:
        """Take `blocks` free blocks; None, and nothing taken, when fewer are free.

        Where that leaves less than what could come, slabs are on their way back before it is done.
        An engine that calls its allocator itself is watched too: then the keeper is rung inside
        the allocation, and asks for them.
        """
        with self._safety:
            self._lender.foresee(blocks)
        return self.kv.allocator.alloc(blocks)

    def reserve(self, tokens: int) -> Ticket | Refusal:
        """Set blocks for `tokens` tokens aside, taking slabs back if need be."""
        blocks = self.kv.geometry.blocks_for(max(tokens, 0))
        if not self.ensure(blocks):
            return Refusal(Reason.POOL_EMPTY)
        with self._safety:
            self._lender.foresee(blocks)
        reservation = self.kv.allocator.reserve(blocks)
        if reservation is None:
            return Refusal(Reason.POOL_EMPTY)
        return Ticket(self.kv.allocator, reservation)

    def settle(self) -> None:
        """Offer slabs that serving does not need now; call it when blocks were freed."""
        with self._safety:
            self._lender.offer_surplus()
