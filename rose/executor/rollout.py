"""The borrower's lane: leased memory, quanta of compute, and the return of both."""

import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Final

from typing_extensions import Self

from rose._core import CudaGraph, StreamGate, Verdict
from rose.compute import BorrowerGate, Gpu
from rose.errors import InvalidArgument, StepAborted, Unavailable
from rose.events import Reason, Refusal
from rose.executor.inputs import is_count, is_size, is_time_ms, require
from rose.executor.loans import Loans, StepPlan
from rose.executor.revocation import OnRevoke
from rose.executor.safety import Reporting
from rose.executor.ticket import Ticket
from rose.memory import KVSpace

# Default wait for a quantum: longer than the creditor takes to answer, short enough to retry often.
_ASK_MS: Final = 5.0
# A parked borrower wakes up this often for `on_look`; an opening gate wakes it by a futex.
_LOOK_UP_MS: Final = 50.0
# Longest wait for the lane's stream. It is reached only if the stream hangs.
_STREAM_MS: Final = 60_000.0
_BLOCKS: Final = "blocks must be an integer from 0 to 10^9"


@dataclass(slots=True)
class Quantum:
    """The right to run one step, segment by segment. It ends with the `with` block.

    Call `RolloutLane.gate` between segments. If this call raises `StepAborted`, the engine must
    catch the exception and roll the step back.
    """

    lane: "RolloutLane"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _failure: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """End the last segment and the step."""
        self.lane.end_step()


class RolloutLane:
    """The borrower's API. One thread runs the steps; any thread may call the other methods.

    The calls of a step: `try_step` → `pin` → `gate`, `gate`, … → `finish` → `unpin` → end of the
    quantum. A refusal is a value. Only the exception `StepAborted` is part of normal operation.

    A step must pin all blocks that it uses. Unpin them as soon as the model has run, before long
    work on the host such as sampling. Revoked slabs without a pin leave within milliseconds, even
    if the engine is too busy to free their blocks. Their data is then lost. `leaving` lists the
    slabs until their blocks are freed.
    """

    def __init__(
        self,
        *,
        kv: KVSpace,
        gate: BorrowerGate,
        loans: Loans,
        reporting: Reporting,
        on_revoke: OnRevoke | None,
        slabs_max: int,
        gpu: Gpu | None,
        has_gates: bool,
    ) -> None:
        """Made by `CoServing.rollout`.

        Args:
            kv: KV space of the borrower's model.
            gate: gate between segments.
            loans: the borrower's side of its loans.
            reporting: context manager for rose's own calls; it reports their failures.
            on_revoke: function that frees the blocks of `leaving` slabs when serving needs them;
                None: nothing frees blocks until the next step.
            slabs_max: largest number of slabs, given the borrower's limit and serving's reserve.
            gpu: GPU of the borrower's work; None on a CPU.
            has_gates: whether a step is divided by gates. False makes each step one segment, to
                measure the benefit of gates.
        """
        self.kv = kv
        self._gpu = gpu  # Keeps the stream alive, since work may use it after the device is closed.
        # CUDA stream for all GPU work of the steps; None on a CPU.
        self.stream = None if gpu is None else gpu.rollout.handle
        self.device = None if gpu is None else gpu.device
        self.on_revoke: OnRevoke = on_revoke or (lambda _notice: None)
        self.on_room: Callable[[], None] = lambda: None
        # Called by the step's thread after each timed-out wait at a closed gate.
        self.on_look: Callable[[], None] = lambda: None
        self.step_thread = 0
        # Number of quanta and passed gates. While it does not change, no new segment starts.
        self.passes = 0
        self._gate = gate
        # False if `gate` must also wait until the stream has passed the gate. This holds for gates
        # in a stream until `set_launches` is called.
        self.runs_ahead = not isinstance(gate, StreamGate)
        self._loans = loans
        self._reporting = reporting
        # Returns why the gate stays closed.
        self.why_refused = loans.why_refused
        self._slabs_max = slabs_max
        # The refusal of the last call of `ensure`; None if it succeeded.
        self.no_memory: Refusal | None = None
        self._has_gates = has_gates
        self._attachment = loans.attachment

    # ---- compute --------------------------------------------------------------------------------

    def try_step(self, batch: Any = None, *, timeout_ms: float = _ASK_MS) -> Quantum | Refusal:
        """Request a quantum for one step.

        Args:
            batch: ignored, because a certificate depends on serving's load only.
            timeout_ms: longest wait at a closed gate before a refusal, in milliseconds. The
                creditor grants credit only to a waiting borrower, so with 0 a closed gate may never
                open.
        """
        del batch
        require(is_time_ms(timeout_ms), "timeout_ms must be at least 0", timeout_ms)
        with self._reporting:
            verdict = self._gate.start(self._attachment, timeout_ms=timeout_ms)
        if verdict == Verdict.PASSED:
            self.step_thread = threading.get_ident()
            self.passes += 1
            with self._reporting:
                self._loans.step_began()
            return Quantum(self)
        if verdict is None:
            return Refusal(Reason.LATE)
        if verdict == Verdict.SHUT_DOWN:
            return Refusal(Reason.CLOSED)
        return self.why_refused()

    def gate(self) -> None:
        """End a segment, and wait until the next one may start.

        With gates in a stream, after `set_launches`, this only waits until the next segment may be
        enqueued.

        Raises:
            StepAborted: serving needs slabs that this step pins; roll it back.
            Unavailable: the device was closed.
        """
        if self._has_gates:
            self._until_passed(self._gate.pass_)
            if not self.runs_ahead:
                self.settle()

    def settle(self) -> None:
        """Wait until every enqueued segment may run, so that none waits at a gate.

        Call this after `gate` if the host waits for the stream in the next segment, as it does in
        copies from pageable memory. If the stream waited at a closed gate, an abort could not end
        the host's wait.

        Raises:
            StepAborted, Unavailable: as in `gate`.
        """
        self._until_passed(self._gate.settle)

    @property
    def has_stream_gates(self) -> bool:
        """True if gates stop the stream, so that CUDA graphs can contain them.

        Otherwise gates stop the host.
        """
        return isinstance(self._gate, StreamGate)

    def capture_gate(self, stream: int | None = None) -> None:
        """Add a gate to the CUDA graph that is being captured on `stream`, for use by `launch`.

        Call this between two segments, outside a quantum, before serving starts.

        Args:
            stream: handle of the CUDA stream under capture; None: the lane's stream.

        Raises:
            InvalidArgument: the stream is not being captured.
            Unavailable: the lane's gates stop the host (see `has_stream_gates`).
        """
        require(stream is None or is_size(stream), "stream must be a handle or None", stream)
        if self._has_gates:
            at = self.stream if stream is None else stream
            self._gate_of_graphs().insert(at or 0)

    def launch(self, graph: CudaGraph) -> None:
        """Launch a graph that has gates, on the lane's stream, once its gates may be enqueued.

        The running segment continues in the graph up to the first gate of the graph. Launch such a
        graph only by this method, because its gates need new numbers for each launch.

        Args:
            graph: graph whose gates were captured by this lane. Keep a reference to it until its
                work is done.

        Raises:
            InvalidArgument: the graph has no gate of this lane.
            StepAborted, Unavailable: as in `gate`. After an abort the graph was not launched, or
                has run to its end.
        """
        require(isinstance(graph, CudaGraph), "graph must be a CudaGraph", graph)
        if not self._has_gates:
            graph.launch(self.stream or 0)
            return
        self._until_passed(partial(self._gate_of_graphs().launch, graph))
        if not self.runs_ahead:
            self.settle()

    def _gate_of_graphs(self) -> StreamGate:
        if isinstance(self._gate, StreamGate):
            return self._gate
        raise Unavailable(
            "the gates of this lane stop the host, and a CUDA graph cannot contain such gates: "
            "capture each segment as a graph of its own, and call gate() between two graphs"
        )

    def set_launches(self, per_segment: int) -> None:
        """Let the host run ahead of its stream, by as many segments as the launch queue holds.

        Before this call `gate` also waits until the next segment may start, because a launch into a
        full queue could block the host inside the driver, where an abort cannot reach it. This call
        has no effect if gates are not in a stream.

        Args:
            per_segment: number of launches in the longest segment, as `LaunchMeasurement` finds it;
                a captured graph counts as one launch.

        Raises:
            InvalidArgument: the queue has no room for such a segment; the message has the number of
                launches that fit.
        """
        require(is_count(per_segment), "per_segment must be a number of launches", per_segment)
        if isinstance(self._gate, StreamGate):
            self._gate.set_launches(per_segment)
        self.runs_ahead = True

    def finish(self) -> None:
        """Wait until all segments have run; call this before you read results and unpin slabs.

        This is one more gate after the last segment. On a GPU the host may run ahead of its stream.
        So this call waits until the stream has passed that gate. An abort can end this wait, unlike
        a wait inside the engine.

        Raises:
            StepAborted, Unavailable: as in `gate`.
        """
        if self._has_gates:
            self._until_passed(self._gate.pass_)
        self.settle()

    def await_stream(self) -> None:
        """Wait until the lane's stream has no work left; call this only while a segment may run.

        Raises:
            DeadlineExceeded: the stream is still busy after a minute.
        """
        if self._gpu is not None:
            self._gpu.rollout.wait(timeout_ms=_STREAM_MS)

    def _until_passed(self, attempt: Callable[..., Verdict]) -> None:
        while True:
            with self._reporting:
                verdict = attempt(timeout_ms=_LOOK_UP_MS)
            if verdict == Verdict.PASSED:
                self.passes += 1
                return
            if verdict == Verdict.ABORTED:
                raise StepAborted("serving took back the slabs of this step")
            if verdict == Verdict.SHUT_DOWN:
                raise Unavailable("the device was closed while a step was at its gate")
            self.on_look()

    def end_step(self) -> None:
        """End the step. Only `Quantum` calls this."""
        self.step_thread = 0
        with self._reporting:
            self._gate.leave()
            self._gate.end_step()
            self._loans.step_ended()

    @property
    def is_in_step(self) -> bool:
        """True while a step runs or waits at one of its gates."""
        return self.step_thread != 0

    @property
    def is_closed(self) -> bool:
        """True if the device has stopped lending, because it was closed or rose failed."""
        return self._loans.is_closed

    # ---- memory ---------------------------------------------------------------------------------

    def ensure(self, blocks: int) -> bool:
        """Ensure `blocks` free blocks, with a grant if necessary; return False if refused."""
        self.no_memory = self.grow(blocks)
        return self.no_memory is None

    def grow(self, blocks: int) -> Refusal | None:
        """Ensure `blocks` free blocks, with a grant if necessary; return a refusal or None."""
        require(is_count(blocks), _BLOCKS, blocks)
        missing = blocks - self.kv.allocator.free_blocks
        if missing <= 0:
            return None
        with self._reporting:
            answer = self._loans.grow(missing)
        if isinstance(answer, Refusal):
            return answer
        if self.kv.allocator.free_blocks < blocks:
            return Refusal(Reason.RESERVE_AT_RISK)
        return None

    def reserve(self, tokens: int) -> Ticket | Refusal:
        """Reserve blocks for `tokens` tokens.

        Args:
            tokens: number of tokens of one sequence, > 0.

        Returns:
            A ticket whose `commit` returns block ids, or a refusal.
        """
        require(is_count(tokens), "tokens must be an integer from 0 to 10^9", tokens)
        blocks = self.kv.geometry.blocks_for(tokens)
        refusal = self.grow(blocks)
        if refusal is not None:
            return refusal
        reservation = self.kv.allocator.reserve(blocks)
        if reservation is None:
            return Refusal(Reason.POOL_EMPTY, retry_after_ms=self._loans.retry_after_ms())
        return Ticket(self.kv.allocator, reservation)

    def alloc(self, blocks: int) -> list[int] | None:
        """Take `blocks` free blocks and return their ids; None if fewer are free."""
        require(is_count(blocks), _BLOCKS, blocks)
        return self.kv.allocator.alloc(blocks)

    def planning(self) -> AbstractContextManager[StepPlan]:
        """Keep the data of all blocks while a step is planned, until `pin`.

        Use it as `with lane.planning() as plan:`, and only for the milliseconds of planning,
        because slabs in revocation wait for the end of the block. Free the blocks in
        `plan.leaving`, pin the step's blocks, and set `plan.order`.
        """
        return self._loans.planning()

    def pin(self, blocks: Iterable[int]) -> int:
        """Pin the slabs of `blocks` for a step, from its preparation to its completion.

        Args:
            blocks: ids of all blocks that the step uses.

        Returns:
            Id of the pin, for `unpin`.

        Raises:
            InvalidArgument: `blocks` has something else than ids of blocks in use.
            StepAborted: serving has taken one of the slabs; its blocks must be freed. Not within
                `planning`, if the blocks of `leaving` slabs were freed there.
        """
        try:
            return int(self.kv.allocator.pin(list(blocks)))
        except Unavailable as error:
            raise StepAborted(str(error)) from error
        except TypeError as error:
            raise InvalidArgument("blocks must be ids of blocks") from error

    def unpin(self, pin: int) -> None:
        """Release a pin. Empty slabs under revocation change owner before this returns."""
        require(is_size(pin), "pin must be the id of a pin", pin)
        self.kv.allocator.unpin(pin)

    def slabs(self) -> list[int]:
        """Return the ids of the slabs on loan, except slabs being taken back."""
        return self._attachment.lent()

    def slabs_max(self) -> int:
        """Return the largest number of slabs that can be on loan, by the limit and the reserve."""
        return self._slabs_max

    def give_back_idle(self) -> int:
        """Give back all slabs without used blocks and pins; return their number."""
        with self._reporting:
            return self._attachment.give_idle()

    def retry_after_ms(self) -> float:
        """Return for how many more milliseconds the loan must not grow, after a revocation."""
        return self._loans.retry_after_ms()

    def leaving(self) -> frozenset[int]:
        """Return the ids of slabs to empty: slabs being taken back, and overdue slabs."""
        return frozenset(self._attachment.leaving())
