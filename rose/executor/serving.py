"""Serving's lane: nothing in here raises, waits without a bound, or holds serving up."""

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral
from types import TracebackType
from typing import Final

from typing_extensions import Self

from rose._core import (
    CloseReason,
    Creditor,
    Forecast,
    LatencyModel,
    Watchdog,
)
from rose.errors import check
from rose.events import Reason, Refusal
from rose.executor.certified import largest_shapes
from rose.executor.lender import Lender
from rose.executor.probing import ProbeRation, ShapeName
from rose.executor.reading import ShapeEvidence
from rose.executor.refusals import read_evidence, read_seen
from rose.executor.safety import Safety
from rose.executor.ticket import Ticket
from rose.slo.evidence import Shape, collect_evidence
from rose.units import NS_PER_MS

# Waits that are kept for reports.
_BLOCKED_KEPT: Final = 65_536
# The most tokens or sequences of a request or a step, as the latency model takes them.
_COUNT_MAX: Final = 1_000_000_000
# What a step that no request was announced for runs under: it closes the gate as one would.
_STEP: Final = "rose: a step without a request"


@dataclass(frozen=True, slots=True)
class ServingLimits:
    """The most serving can ask for at once.

    Args:
        step_tokens: tokens of one engine step; all prefills of a step share it.
        request_tokens: tokens of one prompt.
    """

    step_tokens: int
    request_tokens: int


@dataclass(frozen=True, slots=True)
class StepBatch:
    """What a serving step does: the features of the latency model.

    Args:
        decode_sequences: sequences that get one token.
        context_tokens: KV tokens that are read, over all sequences.
        prefill_tokens: prompt tokens that are processed.
        requests: ids of those that get a token by it. If every running request is one of them, the
            batch counts as fixed, and nothing is set aside in it for a request that arrives.
    """

    decode_sequences: int
    context_tokens: int
    prefill_tokens: int
    requests: tuple[str, ...] = ()


class ServingStep:
    """Protected work: entered when the borrower is parked, left when the step has ended."""

    __slots__ = ("_lane", "at_ns", "batch", "blocked_ms", "is_probe", "lent_ms", "passed")

    def __init__(self, lane: "ServingLane", batch: StepBatch | None) -> None:
        """Made by `ServingLane.step`; `batch` may be set later, before the step ends."""
        self._lane = lane
        self.batch = batch
        self.at_ns = 0  # when the device was serving's
        self.lent_ms = 0.0  # how long, before that, serving had let rollouts go first
        self.blocked_ms = 0.0  # how long, after that, it waited for a segment that still ran
        self.passed = 0  # the segments that had started by then
        self.is_probe = False  # whether no request was live

    def __enter__(self) -> Self:
        """Wait, for a bounded time, until no rollout segment runs; with a batch, lend first."""
        try:
            self._lane.begin_step(self)
        except BaseException:  # An interrupt: a step that never was must not keep the gate closed.
            self._lane.give_step_up()
            raise
        return self

    def commit(self, batch: StepBatch) -> None:
        """Say what the step does, now that it is fixed, and lend what slack it leaves.

        Call it between the preparation of the batch and its work. A request that arrives from now
        on is in the step after this one, so nothing is set aside for it here.
        """
        self.batch = batch
        self._lane.lend_within(self, batch)

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        failure: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """Learn how long the step took, and check that serving's memory is safe."""
        if failure is None and self.batch is not None:
            self._lane.end_step(self, self.batch)
        self._lane.give_step_up()


class ServingLane:
    """What a serving engine calls. Any thread may call any method.

    When rose fails, every method turns into the answer of a device without borrowers. A number out
    of its range is the engine's mistake and no failure of rose: it is counted in `bad_calls`, and
    lending goes on.
    """

    def __init__(
        self,
        *,
        lender: Lender,
        model: LatencyModel,
        safety: Safety,
        watchdog: Watchdog,
        stream: int | None,
        limits: ServingLimits,
        slowdown: float,
    ) -> None:
        """Made by `CoServing.serving`.

        Args:
            lender: of its memory.
            model: of its steps.
            safety: around what is rose's own.
            watchdog: lets a step go on while serving waits for the whole device.
            stream: what its GPU work must be put into; None on a CPU.
            limits: the most it can ask for.
            slowdown: of its SLO.
        """
        self.kv = kv = lender.kv
        self._blocks_max = kv.lendable_bytes // kv.geometry.block_bytes  # free or not
        self.stream = stream
        self.bad_calls = 0
        self.blocked_ms: deque[float] = deque(maxlen=_BLOCKED_KEPT)
        self.limits = limits
        self.safety = safety
        # Guards `_live`, together with the count in `state`, and the ration of probes.
        self._lock = threading.Lock()
        self._live: dict[str, int] = {}  # Ids and their slots.
        self._is_in_step = False
        self._creditor: Creditor | None = None
        self._closes_early = "early_close" not in lender.policy.without
        # An engine that commits its batches is not asked to lend before it knows them.
        self._knows_batches = False
        self._stuck_at: int | None = None
        self._gate = lender.gate
        self._state = lender.state
        self._model = model
        self._slowdown = slowdown
        step, chunk = largest_shapes(limits.request_tokens, limits.step_tokens)
        self._shapes: dict[ShapeName, Shape] = {"step": step, "chunk": chunk}
        self._probes = ProbeRation(wanted=self.evidence()[0].wanted)
        self._demand = lender.demand
        self._log = lender.log
        self._lender = lender
        self._watchdog = watchdog
        self._park_wait_ms = lender.policy.park_wait_ms
        self._clock = lender.clock

    def lend_by(self, creditor: Creditor | None) -> None:
        """Ask `creditor` from now on what may go before a step, or beside it; None: nothing."""
        self._creditor = creditor

    # ---- requests -------------------------------------------------------------------------------

    def arrived(self, request_id: str, *, prompt_tokens: int, prefilled: bool = False) -> None:
        """Say that a request is here, as early as possible: this closes the gate.

        Args:
            request_id: unique among live requests.
            prompt_tokens: length of its prompt; one out of its range counts as the longest.
            prefilled: its KV comes from elsewhere, so it decodes at once.
        """
        with self.safety:
            if self._closes_early:  # Before any lock that somebody else may hold.
                self._gate.close(CloseReason.ARRIVAL)
        if not _is_count(prompt_tokens):
            self.bad_calls += 1
            prompt_tokens = self.limits.request_tokens
        with self.safety, self._lock:
            if request_id not in self._live:
                self._live[request_id] = self._state.arrived(
                    tokens=prompt_tokens, prefilled=prefilled
                )
                if request_id != _STEP:
                    self._demand.arrived(prompt_tokens=prompt_tokens)
                self._lender.load_changed()

    def emitted(self, request_id: str) -> None:
        """Say that a token of the request went out; `emitted_all` is cheaper for a whole step.

        Args:
            request_id: a request that has arrived.
        """
        self.emitted_all((request_id,))

    def emitted_all(self, request_ids: Iterable[str]) -> None:
        """Say that each of these requests got a token: its next one is due a TPOT target later.

        Args:
            request_ids: requests that have arrived; others are passed over.
        """
        with self.safety, self._lock:
            slots = [self._live[one] for one in request_ids if one in self._live]
            if slots:
                self._state.beat()
                self._state.emitted(slots)

    def finished(self, request_id: str) -> None:
        """Say that the request is over; after the last one rollouts may be granted a quantum.

        An id that is not live is passed over, so an engine may say it twice.
        """
        with self.safety, self._lock:
            if request_id in self._live:
                slot = self._live.pop(request_id)
                check(self._state.finished(slot), "serving has fewer requests than live ids")
                self._lender.load_changed()

    # ---- steps ----------------------------------------------------------------------------------

    def step(self, batch: StepBatch | None = None) -> ServingStep:
        """Protect one engine step: `with serving.step(batch): run()`.

        Args:
            batch: what it does, fixed from now on. With a `slowdown` in its SLO rollouts go first,
                as long as running requests can pay for it and every token still comes in time. None
                when it is not known yet: say it by `ServingStep.commit`, or by setting
                `ServingStep.batch` before the step ends.
        """
        return ServingStep(self, batch)

    @contextmanager
    def blocking(self) -> Iterator[None]:
        """Declare a call that may wait for the whole device: `with serving.blocking(): free()`.

        A free, a capture, the first launch of a kernel, a synchronise. The borrower's step is on
        the device too, and stops at its gates as long as serving is busy: neither would ever end.
        While such a call is declared, a parked step is let go on, one segment for each
        `WATCHDOG_MS` in which nothing moved. Elsewhere never. Declarations may overlap.
        """
        is_declared = False
        with self.safety:
            self._watchdog.enter()
            is_declared = True
        try:
            yield
        finally:
            with self.safety:
                if is_declared:
                    self._watchdog.leave()

    def begin_step(self, step: ServingStep) -> None:
        """Make sure that the device is serving's, after lending what slack its batch leaves.

        A segment that did not end in time is waited for once, not at every step.
        """
        batch = self._sound(step.batch)
        with self.safety:
            self._state.step_began()
            self._is_in_step = True
            self._probes.stepped()
        step.is_probe = not self._live
        if step.is_probe:
            self.arrived(_STEP, prompt_tokens=0)
        with self.safety:
            if batch is not None or not self._knows_batches:
                self._lend(step, batch)
            elif self._creditor is not None:
                self._creditor.close_for_step()
            self._wait_parked(step)
        step.at_ns = self._clock.now_ns()

    def lend_within(self, step: ServingStep, batch: StepBatch) -> None:
        """Lend within a step whose batch is prepared; what that takes is not part of the step."""
        self._knows_batches = True
        sound = self._sound(batch)
        from_ns = self._clock.now_ns()
        with self.safety:
            self._lend(step, sound)
            self._wait_parked(step)
        step.at_ns += self._clock.now_ns() - from_ns

    def _sound(self, batch: StepBatch | None) -> StepBatch | None:
        """Return the batch, or None in place of one whose numbers no step can have."""
        if batch is None:
            return None
        counts = (batch.decode_sequences, batch.context_tokens, batch.prefill_tokens)
        if all(map(_is_count, counts)):
            return batch
        self.bad_calls += 1
        return None

    def _lend(self, step: ServingStep, batch: StepBatch | None) -> None:
        if self._creditor is None:
            return
        if batch is None:
            step.lent_ms += self._creditor.before_step()
            return
        slots = [self._live[one] for one in batch.requests if one in self._live]
        features = batch.decode_sequences, batch.context_tokens, batch.prefill_tokens
        step.lent_ms += self._creditor.before_step(features, slots)

    def give_step_up(self) -> None:
        """Say that no step is under way: it ended, or never began."""
        with self.safety:
            self._is_in_step = False
            self._state.step_ended()
        self.finished(_STEP)

    def _wait_parked(self, step: ServingStep) -> None:
        """Wait for the segment that still runs, if there is one worth waiting for."""
        segment = step.passed = self._gate.passed
        if not self._gate.is_running() or segment == self._stuck_at or self._gate.is_open():
            return
        borrower = self._lender.newest
        if borrower is None or borrower.is_evicted:  # It dies; until then it may still write.
            return
        waited_ms = self._gate.wait_parked(timeout_ms=self._park_wait_ms)
        self._stuck_at = segment if waited_ms is None else None
        if waited_ms is None:
            borrower.park_timed_out()
            waited_ms = self._park_wait_ms
        step.blocked_ms += waited_ms
        step.passed = self._gate.passed
        self.blocked_ms.append(waited_ms)

    def end_step(self, step: ServingStep, batch: StepBatch) -> None:
        """Feed the latency model and re-check serving's memory."""
        if self._sound(batch) is None:
            return
        with self.safety:
            actual_ms = (self._clock.now_ns() - step.at_ns) / NS_PER_MS
            features = {
                "decode_sequences": batch.decode_sequences,
                "context_tokens": batch.context_tokens,
                "prefill_tokens": batch.prefill_tokens,
            }
            forecast = self._learn(actual_ms, features, step)
            self._log.append_step(
                forecast,
                actual_ms=actual_ms,
                blocked_ms=step.blocked_ms,
                lent_ms=step.lent_ms,
                began_ns=step.at_ns,
                **features,
            )
            self._demand.step_ended(
                predicted_ms=forecast.predicted_ms,
                actual_ms=actual_ms,
                decode_sequences=batch.decode_sequences,
                prefill_tokens=batch.prefill_tokens,
            )
            self._lender.recheck()
        if step.is_probe:
            with self.safety, self._lock:
                shape: ShapeName = "chunk" if batch.prefill_tokens else "step"
                self._probes.probed(shape, actual_ms * NS_PER_MS)

    def _learn(self, actual_ms: float, features: dict[str, int], step: ServingStep) -> Forecast:
        """Return what was forecast; a step beside a late segment teaches nothing.

        Without a limit to the slowdown, most steps come after a loan: then these are what is
        forecast.
        """
        is_beside = self._gate.passed != step.passed or self._gate.is_running()
        if self._creditor is None or not is_beside:
            is_after_loan = step.lent_ms > 0 and math.isfinite(self._slowdown)
            return self._model.observe(actual_ms, **features, is_after_loan=is_after_loan)
        return self._model.forecast(**features)

    # ---- evidence -------------------------------------------------------------------------------

    @property
    def has_requests(self) -> bool:
        """Whether a request is live."""
        return any(one != _STEP for one in list(self._live))

    def evidence(self) -> tuple[ShapeEvidence, ...]:
        """Say what the bounds of the two step shapes that certificates ask about rest on."""
        return tuple(read_evidence(self._model, *named) for named in self._shapes.items())

    def warm_up(self, run: Callable[[StepBatch], None]) -> None:
        """Run both step shapes until each has a bound; call it before the first request.

        For engines without a prober of rose's. Call it in the thread that runs serving's steps.

        Args:
            run: runs one step of a shape to its end; its time is measured.

        Raises:
            DeadlineExceeded: the times of the steps vary too much for a bound.
        """

        def step(shape: Shape) -> None:
            decode, context, prefill = map(int, shape)
            batch = StepBatch(decode, context, prefill)
            with self.step(batch):
                run(batch)

        collect_evidence(self._model, self._shapes.values(), step)

    def probe_due(self) -> StepBatch | None:
        """Return a step to run now for its time alone; None: there is nothing to measure.

        Ask every 20 ms or so while no request is there. Run the step under `step`, commit its
        batch, and announce no request for it; give it up as soon as one arrives. Bounds need such
        steps at start-up, when no quantum is granted because of a shape, and now and then.
        """
        with self.safety, self._lock:
            creditor = self._creditor
            if creditor is None:
                return None
            is_idle = not self._live and not self._is_in_step
            seen = read_seen(creditor, self._shapes, is_idle=is_idle)
            due = self._probes.due(self._clock.now_ns(), seen)
            if due is not None:
                decode, context, prefill = map(int, self._shapes[due])
                return StepBatch(decode, context, prefill)
        return None

    # ---- memory ---------------------------------------------------------------------------------

    def ensure(self, blocks: int) -> bool:
        """Have `blocks` free blocks, taking slabs back if need be; waits at most T_revoke."""
        if not self._can_hold(blocks):
            return False
        missing = blocks - self.kv.allocator.free_blocks
        if missing > 0:
            with self.safety:
                self._lender.reclaim(missing)
        return bool(self.kv.allocator.free_blocks >= blocks)

    def alloc(self, blocks: int) -> list[int] | None:
        """Take `blocks` free blocks; None, and nothing taken, when fewer are free.

        Where that leaves less than what could come, slabs are on their way back before it is done.
        An engine that calls its allocator itself is watched too: then the keeper is rung inside
        the allocation, and asks for them.
        """
        if not self._can_hold(blocks):
            return None
        with self.safety:
            self._lender.foresee(blocks)
        return self.kv.allocator.alloc(blocks)

    def _can_hold(self, blocks: int) -> bool:
        """Whether the pool has so many blocks, free or not."""
        if _is_count(blocks) and blocks <= self._blocks_max:
            return True
        self.bad_calls += 1
        return False

    def reserve(self, tokens: int) -> Ticket | Refusal:
        """Set blocks for `tokens` tokens aside, taking slabs back if need be."""
        if not _is_count(tokens):
            self.bad_calls += 1
            return Refusal(Reason.POOL_EMPTY)
        blocks = self.kv.geometry.blocks_for(tokens)
        if not self.ensure(blocks):
            return Refusal(Reason.POOL_EMPTY)
        with self.safety:
            self._lender.foresee(blocks)
        reservation = self.kv.allocator.reserve(blocks)
        if reservation is None:
            return Refusal(Reason.POOL_EMPTY)
        return Ticket(self.kv.allocator, reservation)

    def settle(self) -> None:
        """Offer slabs that serving does not need now; call it when blocks were freed."""
        with self.safety:
            self._lender.offer_surplus()


def _is_count(value: object) -> bool:
    if type(value) is int:  # First, as it is a tenth of the time.
        return 0 <= value <= _COUNT_MAX
    # An integer of NumPy is one, too.
    return isinstance(value, Integral) and 0 <= int(value) <= _COUNT_MAX
