"""Serving's lane: no failure of rose raises here, and every wait is bounded."""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Final

from typing_extensions import Self

from rose._core import (
    CloseReason,
    Creditor,
    LatencyModel,
    ServingSteps,
    Watchdog,
)
from rose.compute import Gpu
from rose.errors import check
from rose.events import Reason, Refusal
from rose.executor.certified import largest_shapes
from rose.executor.inputs import is_count
from rose.executor.lender import Lender
from rose.executor.probing import ProbeRation, ShapeName
from rose.executor.reading import ShapeEvidence
from rose.executor.refusals import read_evidence, read_seen
from rose.executor.safety import Safety
from rose.executor.ticket import Ticket
from rose.slo.evidence import Shape, collect_evidence
from rose.units import ceil_div

# Number of waits that are kept for reports.
_BLOCKED_KEPT: Final = 65_536
# While no borrower is attached, only one step in this many is measured, because it takes hundreds
# of microseconds to protect, measure and log a step. A window of 200 steps is still renewed within
# 12,800 steps.
_ALONE_EVERY: Final = 64
# Request id of a step without an announced request. Such a step closes the gate like a request.
_STEP: Final = "rose: a step without a request"


@dataclass(frozen=True, slots=True)
class ServingLimits:
    """Maximum sizes of serving's work.

    Args:
        step_tokens: largest number of tokens in one engine step, all prefills together.
        request_tokens: largest number of tokens in one prompt.
    """

    step_tokens: int
    request_tokens: int

    def probe_size(self, decode_steps: int, holds_tokens: int) -> tuple[int, int, int]:
        """Return how many requests a probe has, and the prompt tokens and new tokens of each."""
        new_tokens = 1 + min(decode_steps, self.request_tokens // 2)
        prompt_tokens = max(self.request_tokens - new_tokens, 1)
        fit = max(holds_tokens // self.request_tokens, 1)
        # Together the prompts fill a step, if the pool holds so many requests.
        return min(ceil_div(self.step_tokens, prompt_tokens), fit), prompt_tokens, new_tokens


@dataclass(frozen=True, slots=True)
class StepBatch:
    """Shape of a serving step: the features of the latency model.

    Args:
        decode_sequences: number of sequences that get one token.
        context_tokens: number of KV tokens read, over all sequences.
        prefill_tokens: number of prompt tokens processed.
        requests: ids of the requests that get a token. If all running requests are listed, no
            request can join the step, so no time is reserved in the step for an arriving request.
    """

    decode_sequences: int
    context_tokens: int
    prefill_tokens: int
    requests: tuple[str, ...] = ()

    @property
    def features(self) -> Shape:
        """Return the features of the latency model."""
        return self.decode_sequences, self.context_tokens, self.prefill_tokens


class ServingStep:
    """A protected step: entered once the borrower is parked, left when the step has ended."""

    __slots__ = ("_lane", "at_ns", "batch", "blocked_ms", "is_probe", "lent_ms", "passed")

    def __init__(self, lane: "ServingLane", batch: StepBatch | None) -> None:
        """Made by `ServingLane.step`; `batch` may be set later, before the step ends."""
        self._lane = lane
        self.batch = batch
        self.at_ns = 0  # time at which serving got the device
        self.lent_ms = 0.0  # time for which serving let rollouts run first
        self.blocked_ms = 0.0  # time for which serving then waited for a running segment
        self.passed = 0  # number of segments that had started when the wait ended
        self.is_probe = False  # whether no request was live at the beginning

    def __enter__(self) -> Self:
        """Wait a bounded time until no rollout segment runs.

        Rollouts run first if the batch is set, or if the engine never calls `commit`.
        """
        try:
            self._lane.begin_step(self)
        except BaseException:  # Interrupted: a step that never began must not keep the gate closed.
            self._lane.give_step_up()
            raise
        return self

    def commit(self, batch: StepBatch) -> None:
        """Fix the step's batch, and lend the slack that this batch leaves.

        Call this after the batch was prepared and before it runs. Requests that arrive later join
        the next step, so no time is reserved for them here.
        """
        self.batch = batch
        self._lane.lend_within(self, batch)

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        failure: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """Record the step's time, and check that serving has enough memory."""
        if failure is None and self.batch is not None:
            self._lane.end_step(self, self.batch)
        else:
            self._lane.give_step_up()


class ServingLane:
    """The serving engine's API. Any thread may call any method.

    After a failure of rose, every method behaves as on a device without borrowers. A number out of
    range or a value of a wrong type is an error of the engine, not of rose: the call is counted in
    `bad_calls` and has no effect, and lending continues.
    """

    def __init__(
        self,
        *,
        lender: Lender,
        model: LatencyModel,
        safety: Safety,
        steps: ServingSteps,
        watchdog: Watchdog,
        gpu: Gpu | None,
        limits: ServingLimits,
        creditor: Creditor,
    ) -> None:
        """Made by `CoServing.serving`.

        Args:
            lender: memory policy of the device.
            model: latency model of serving's steps.
            safety: context manager for rose's own calls; it suppresses their failures.
            steps: the steps of serving in the core.
            watchdog: thread that lets a parked rollout step proceed while serving waits for the
                whole device.
            gpu: GPU of serving's work; None on a CPU.
            limits: largest sizes of serving's work.
            creditor: bounds the waits for segments, also while it does not lend.
        """
        self.kv = kv = lender.kv
        self._blocks_max = kv.lendable_bytes // kv.geometry.block_bytes  # used and free blocks
        self._gpu = gpu  # Keeps the stream alive, since work may use it after the device is closed.
        # CUDA stream for serving's work; None on a CPU.
        self.stream = None if gpu is None else gpu.serving.handle
        self.bad_calls = 0
        self.blocked_ms: deque[float] = deque(maxlen=_BLOCKED_KEPT)
        self.limits = limits
        self.safety = safety
        # Guards `_live` together with the count in `state`, and the ration of probes.
        self._lock = threading.Lock()
        self._live: dict[str, int] = {}  # Request id → slot.
        self._is_in_step = False
        self._alone_steps = 0  # number of steps since the last measured step
        self._has_evidence = False  # Whether the window of evidence is full; it then stays full.
        self._creditor: Creditor | None = None
        self._closes_early = "early_close" not in lender.policy.without
        # True if the engine calls `commit`: rose then lends at the commit, not before the step.
        self._knows_batches = False
        self._stuck_at: int | None = None
        self._gate = lender.gate
        self._state = lender.state
        self._model = model
        step, chunk = largest_shapes(limits.request_tokens, limits.step_tokens)
        self._shapes: dict[ShapeName, Shape] = {"step": step, "chunk": chunk}
        self._probes = ProbeRation(wanted=self.evidence()[0].wanted)
        self._demand = lender.demand
        self._steps = steps
        self._lender = lender
        self._supply = lender.supply
        self._watchdog = watchdog
        self._waits = creditor
        self._clock = lender.clock

    def lend_by(self, creditor: Creditor | None) -> None:
        """Let `creditor` lend before and within steps; None: steps lend nothing."""
        self._creditor = creditor
        self._steps.set_lending(creditor is not None)

    # ---- requests -------------------------------------------------------------------------------

    def arrived(self, request_id: str, *, prompt_tokens: int, prefilled: bool = False) -> None:
        """Announce a request. Call this as early as possible, because it closes the gate.

        Args:
            request_id: id that no other live request has.
            prompt_tokens: length of the prompt; a value out of range counts as the maximum.
            prefilled: whether the request's KV comes from elsewhere, so that it decodes at once.
        """
        if not self._accepts(type(request_id) is str and type(prefilled) is bool):
            return
        with self.safety:
            if self._closes_early:  # This comes before any lock, which another thread may hold.
                self._gate.close(CloseReason.ARRIVAL)
        if not self._accepts(is_count(prompt_tokens)):
            prompt_tokens = self.limits.request_tokens
        with self.safety, self._lock:
            if request_id not in self._live:
                self._live[request_id] = self._state.arrived(
                    tokens=prompt_tokens, prefilled=prefilled
                )
                self._probes.stepped()
                if request_id != _STEP:
                    self._demand.arrived(prompt_tokens=prompt_tokens)
                self._supply.load_changed()

    def emitted(self, request_id: str) -> None:
        """Report a token of one request; `emitted_all` is cheaper for a whole step."""
        self.emitted_all((request_id,))

    def emitted_all(self, request_ids: Iterable[str], *, is_late: bool = False) -> None:
        """Report one token of each request. The next token is due within the TPOT target.

        Args:
            request_ids: ids of live requests; other ids are ignored.
            is_late: True for a token of a skipped step, reported one or more steps later. The token
                counts in the context length, but its time counts only if it is a request's first
                token.
        """
        if not self._accepts(type(is_late) is bool):
            return
        with self.safety, self._lock:
            slots = self._slots(request_ids)
            if slots:
                self._steps.emitted(slots, is_late=is_late)

    def finished(self, request_id: str) -> None:
        """Report the end of a request. When no request is left, rollouts may get a quantum.

        An unknown id is ignored, so a second call does no harm.
        """
        if not self._accepts(type(request_id) is str):
            return
        with self.safety, self._lock:
            if request_id in self._live:
                slot = self._live.pop(request_id)
                check(self._state.finished(slot), "serving has fewer requests than live ids")
                self._supply.load_changed()

    def _slots(self, request_ids: Iterable[str]) -> list[int]:
        """Return the slots of those requests that are live; none if the ids are no ids."""
        live = self._live
        try:
            return [live[one] for one in request_ids if one in live]
        except Exception:  # noqa: BLE001 (it is the engine's, perhaps of its own generator)
            self.bad_calls += 1
            return []

    def _accepts(self, is_sound: object) -> bool:
        """Return `is_sound`, and count the call as an error of the engine if it is False."""
        if not is_sound:
            self.bad_calls += 1
        return bool(is_sound)

    # ---- steps ----------------------------------------------------------------------------------

    def step(self, batch: StepBatch | None = None) -> ServingStep:
        """Protect one engine step: `with serving.step(batch): run()`.

        Args:
            batch: shape of the step, fixed from now on. If `SLO.slowdown` is above 0, rollouts run
                first, as long as the running requests have budget and no token becomes late. None:
                the shape is not known yet; call `ServingStep.commit`, or set `ServingStep.batch`
                before the step ends.
        """
        return ServingStep(self, batch)

    def skips_step(self) -> bool:
        """Return True if no borrower is attached and the next step may run without `step`.

        Only for engines that end requests between steps. A borrower that attaches during a skipped
        step gets no quantum before the step ends, because the step's requests are live until then.
        Some steps are not skipped even without a borrower, so that the evidence stays recent.
        """
        self._alone_steps += 1
        if self._alone_steps >= _ALONE_EVERY:
            self._alone_steps = 0
            self._has_evidence = self._has_evidence or not any(
                one.missing for one in self.evidence()
            )
            return False
        lender = self._lender
        return (
            self._has_evidence
            and bool(self._live)  # A step without a live request is a probe, which is measured.
            and lender.supply.borrower is None
            and (lender.newest is None or not self._gate.is_running())
        )

    @contextmanager
    def blocking(self) -> Iterator[None]:
        """Declare a call that may wait for the whole device: `with serving.blocking(): free()`.

        Examples are a free, a graph capture, the first launch of a kernel and a device-wide
        synchronisation. Such a call waits for the borrower's step, which waits at a gate while
        serving is busy: a deadlock. So after each `WATCHDOG_MS` without progress of a declared
        call, a parked step may run one more segment. Declarations may overlap. If the borrower
        runs in this process, an undeclared call is detected too, after 100 ms per segment, from
        idle streams of serving while a request is live.
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

    def watch(self, streams: Sequence[int]) -> None:
        """On a GPU, detect calls that wait for the whole device although they are not declared.

        Args:
            streams: handles of serving's streams besides `stream`.
        """
        if self._gpu is not None:
            self._watchdog.watch(
                device=self._gpu.device,
                streams=[self._gpu.serving.handle, *streams],
                state=self._state,
            )

    @property
    def undeclared_waits(self) -> int:
        """Segments that rose let through because serving seemed to wait in an undeclared call.

        Such a call should be declared: see `blocking`.
        """
        return int(self._watchdog.undeclared)

    def begin_step(self, step: ServingStep) -> None:
        """Lend the slack of the batch, then wait until serving has the device.

        A segment that does not end in time delays one step, not every step.
        """
        batch = self._sound(step.batch)
        self._is_in_step = True
        step.is_probe = not self._live
        if step.is_probe:
            self.arrived(_STEP, prompt_tokens=0)
        with self.safety:
            lends = batch is not None or not self._knows_batches
            begun = self._steps.begin(*self._of_core(batch), lends=lends)
            step.lent_ms, _, step.at_ns, step.passed, is_blocked = begun
            if is_blocked:
                self._wait_parked(step)
                step.at_ns = self._clock.now_ns()
        if step.at_ns == 0:  # rose has failed; the step is measured all the same.
            step.at_ns = self._clock.now_ns()

    def lend_within(self, step: ServingStep, batch: StepBatch) -> None:
        """Lend within a step whose batch is prepared; the lent time is not part of the step."""
        self._knows_batches = True
        sound = self._sound(batch)
        with self.safety:
            begun = self._steps.commit(*self._of_core(sound))
            lent_ms, from_ns, until_ns, step.passed, is_blocked = begun
            step.lent_ms += lent_ms
            if is_blocked:
                self._wait_parked(step)
                until_ns = self._clock.now_ns()
            step.at_ns += until_ns - from_ns

    def _sound(self, batch: StepBatch | None) -> StepBatch | None:
        """Return the batch; None if it is no batch, or a number is out of range."""
        if batch is None:
            return None
        if not self._accepts(type(batch) is StepBatch):
            return None
        counts = (batch.decode_sequences, batch.context_tokens, batch.prefill_tokens)
        return batch if self._accepts(all(map(is_count, counts))) else None

    def _of_core(self, batch: StepBatch | None) -> tuple[Shape | None, list[int]]:
        """Return the features of the batch, and the slots of its requests."""
        if batch is None:
            return None, []
        return batch.features, self._slots(batch.requests)

    def give_step_up(self) -> None:
        """Record that the step has ended without a result, or never began."""
        with self.safety:
            self._steps.abandon()
        self._is_in_step = False
        self.finished(_STEP)

    def _wait_parked(self, step: ServingStep) -> None:
        """Wait for a running segment, unless it is known to be stuck or its borrower is evicted."""
        segment = step.passed = self._gate.passed
        if not self._gate.is_running() or segment == self._stuck_at or self._gate.is_open():
            return
        borrower = self._lender.newest
        # The process of an evicted borrower is being ended, but may still write to the gate.
        if borrower is None or borrower.is_evicted:
            return
        wait = self._waits.wait_parked(borrower=borrower.partition)
        self._stuck_at = None if wait.has_ended else segment
        step.blocked_ms += wait.waited_ms
        step.passed = self._gate.passed
        self.blocked_ms.append(wait.waited_ms)
        if wait.is_spent:
            borrower.wait_budget_spent(self._lender.log.waited_ms)

    def end_step(self, step: ServingStep, batch: StepBatch) -> None:
        """End the step, with all that it says about serving's speed, and recheck the memory."""
        if self._sound(batch) is None:
            self.give_step_up()
            return
        with self.safety:
            actual_ns, is_short = self._steps.end(
                batch.features,
                began_ns=step.at_ns,
                lent_ms=step.lent_ms,
                blocked_ms=step.blocked_ms,
                passed=step.passed,
            )
            if is_short:
                self._supply.take_ahead()
            if step.is_probe:
                shape: ShapeName = "chunk" if batch.prefill_tokens else "step"
                with self._lock:
                    self._probes.probed(shape, actual_ns)
        self._is_in_step = False
        self.finished(_STEP)

    # ---- evidence -------------------------------------------------------------------------------

    @property
    def has_requests(self) -> bool:
        """True if a request is live."""
        return any(one != _STEP for one in list(self._live))

    def evidence(self) -> tuple[ShapeEvidence, ...]:
        """Return the evidence for the two step shapes that certificates rely on."""
        return tuple(read_evidence(self._model, *named) for named in self._shapes.items())

    def warm_up(self, run: Callable[[StepBatch], None]) -> None:
        """Run both step shapes until each has a bound. Call this before the first request.

        For engines without rose's prober. Call this in the thread that runs serving's steps.

        Args:
            run: function that runs one step of the given shape to its end; its time is measured.

        Raises:
            DeadlineExceeded: the step times vary too much for a bound.
        """
        if not self._accepts(callable(run)):
            return

        def step(shape: Shape) -> None:
            decode, context, prefill = map(int, shape)
            batch = StepBatch(decode, context, prefill)
            with self.step(batch):
                run(batch)

        collect_evidence(self._model, self._shapes.values(), step)

    def probe_due(self) -> StepBatch | None:
        """Return a step to run now, only to measure it; None if no probe is due.

        Call this about every 20 ms while no request is live. Run the returned batch under `step`
        and commit it, without announcing a request. If a request arrives first, drop the batch.
        Probes are due at start-up, while a shape causes refusals, and occasionally otherwise.
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

    def begin_probing(self) -> None:
        """Start to count idle time for probes, from the next call of `probe_due`.

        Call this if `probe_due` was not called for a while, so that this time earns no probes.
        """
        with self.safety, self._lock:
            self._probes.stepped()

    # ---- memory ---------------------------------------------------------------------------------

    def ensure(self, blocks: int) -> bool:
        """Ensure `blocks` free blocks, with a revocation if necessary.

        Waits at most T (`Policy.revoke_ms`). Until `settle` is called, serving keeps the slabs of
        these blocks.

        Returns:
            Whether the blocks are free now.
        """
        if not self._can_hold(blocks):
            return False
        with self.safety:
            self._supply.keep_surplus()
        missing = blocks - self.kv.allocator.free_blocks
        if missing > 0:
            with self.safety:
                self._supply.reclaim(missing)
        return bool(self.kv.allocator.free_blocks >= blocks)

    def alloc(self, blocks: int) -> list[int] | None:
        """Take `blocks` free blocks and return their ids; None if fewer are free.

        If this would leave less than serving's demand, a revocation starts before the allocation.
        If an engine calls its allocator directly, the keeper starts the revocation afterwards.
        """
        if not self._can_hold(blocks):
            return None
        with self.safety:
            self._supply.foresee(blocks)
        return self.kv.allocator.alloc(blocks)

    def _can_hold(self, blocks: int) -> bool:
        """Return True if the pool has that many blocks, used and free."""
        return self._accepts(is_count(blocks) and blocks <= self._blocks_max)

    def reserve(self, tokens: int) -> Ticket | Refusal:
        """Reserve blocks for `tokens` tokens, with a revocation if necessary."""
        if not self._accepts(is_count(tokens)):
            return Refusal(Reason.POOL_EMPTY)
        blocks = self.kv.geometry.blocks_for(tokens)
        if not self.ensure(blocks):
            return Refusal(Reason.POOL_EMPTY)
        with self.safety:
            self._supply.foresee(blocks)
        reservation = self.kv.allocator.reserve(blocks)
        if reservation is None:
            return Refusal(Reason.POOL_EMPTY)
        return Ticket(self.kv.allocator, reservation)

    def settle(self) -> None:
        """Offer slabs that serving does not need now. Call this after freeing blocks.

        Slabs kept because of a recent burst of requests are offered later, while no request is
        live.
        """
        with self.safety:
            self._supply.offer_surplus()
