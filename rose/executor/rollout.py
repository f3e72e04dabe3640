"""The borrower's lane: leased memory, quanta of compute, and the return of both."""

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import Self

from rose._core import CudaGraph, StreamGate, Verdict
from rose.compute import BorrowerGate, Gpu
from rose.errors import StepAborted, Unavailable
from rose.events import Reason, Refusal
from rose.executor.revocation import OnRevoke
from rose.executor.safety import Reporting
from rose.executor.ticket import Ticket
from rose.executor.weight_bins import HostUpload, StreamUpload, Upload
from rose.memory import KVGroups, KVSpace

if TYPE_CHECKING:  # Messages between processes need an extra of this package.
    from rose.executor.attached_loans import AttachedLoans
    from rose.executor.lender import Lender

# Longer than the creditor's answer takes, short enough to retry often.
_ASK_MS: Final = 5.0
# A parked borrower wakes up this often to renew its leases; an opening gate wakes it by a futex.
_LOOK_UP_MS: Final = 50.0


@dataclass(slots=True)
class Quantum:
    """The right to run one step, segment by segment. It ends with the `with` block.

    Call `RolloutLane.gate` between segments. The engine must catch `StepAborted` from it and roll
    the step back.
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

    The life of a step: `try_step` → `pin` → `gate`, `gate`, … → `finish` → `unpin` → end of the
    quantum. A refusal is a value. `StepAborted` is the only exception of a normal run.
    """

    def __init__(
        self,
        *,
        groups: KVGroups,
        gate: BorrowerGate,
        loans: "Lender | AttachedLoans",
        reporting: Reporting,
        on_revoke: OnRevoke | None,
        why_refused: Callable[[], Reason],
        slabs_max: int,
        gpu: Gpu | None,
        has_gates: bool,
    ) -> None:
        """Made by `CoServing.rollout`.

        Args:
            groups: views of the pool, one per attention group of the borrower's model.
            gate: gate between segments.
            loans: source of slabs.
            reporting: context manager for rose's own calls; it reports their failures.
            on_revoke: called to free blocks when serving needs slabs; None: the arbiter picks
                slabs.
            why_refused: returns the reason why a step is refused.
            slabs_max: maximum slabs, from the borrower's limit and serving's reserve.
            gpu: device of the borrower's work; None on a CPU.
            has_gates: False makes each step one segment, to measure the benefit of gates.
        """
        self.groups = groups
        self._gpu = gpu  # Owns the stream, which work may still use when the device is gone.
        # CUDA stream for all GPU work of the steps; None on a CPU.
        self.stream = None if gpu is None else gpu.rollout.handle
        self.device = None if gpu is None else gpu.device
        # Copies host bytes into the pool, in that stream.
        self.upload: Upload = HostUpload() if gpu is None else StreamUpload(gpu.rollout)
        self.on_revoke: OnRevoke = on_revoke or (lambda notice: notice.begin(()))
        self.on_room: Callable[[], None] = lambda: None
        # Called by the step's thread after each timed-out wait at a closed gate.
        self.on_look: Callable[[], None] = lambda: None
        self.step_thread = 0
        # Number of quanta and passed gates: while it is constant, no new segment starts.
        self.passes = 0
        self._gate = gate
        # Whether the host may enqueue a segment behind a gate that the stream has not passed.
        self.runs_ahead = not isinstance(gate, StreamGate)
        self._loans = loans
        self._reporting = reporting
        self.why_refused = why_refused
        self._slabs_max = slabs_max
        self._has_gates = has_gates
        self._books = groups.arbiter
        self._partition = groups.partition

    # ---- compute --------------------------------------------------------------------------------

    def try_step(self, batch: Any = None, *, timeout_ms: float = _ASK_MS) -> Quantum | Refusal:
        """Request a quantum for one step.

        Args:
            batch: ignored: a certificate depends on serving's load only.
            timeout_ms: maximum wait at a closed gate before a refusal. The creditor grants credit
                only to a waiting borrower: with 0 a closed gate may never open.
        """
        del batch
        self._renew()
        if self._is_late():
            return Refusal(Reason.LATE)
        with self._reporting:
            self._gate.begin_step()
            verdict = self._gate.pass_(timeout_ms=timeout_ms)
            if verdict == Verdict.PASSED:
                # Preparing the step waits for its stream, which must not be parked at a gate then.
                verdict = self._gate.settle(timeout_ms=timeout_ms)
        if verdict == Verdict.PASSED:
            self.step_thread = threading.get_ident()
            self.passes += 1
            with self._reporting:
                self._loans.step_began()
            return Quantum(self)
        self._gate.end_step()
        if verdict == Verdict.SHUT_DOWN:
            return Refusal(Reason.CLOSED)
        return Refusal(self.why_refused())

    def gate(self) -> None:
        """End a segment, and wait until the next one may start.

        Raises:
            StepAborted: serving needs slabs that this step pins; roll it back.
            Unavailable: the device was closed.
        """
        if self._has_gates:
            self._until_passed(self._gate.pass_)
            if not self.runs_ahead:
                self.settle()

    def settle(self) -> None:
        """Wait until every segment may run, so that none waits at a gate.

        Call it after `gate` if the next segment waits for the stream on the host, as copies from
        pageable memory do: behind a closed gate no abort would reach that wait.

        Raises:
            StepAborted, Unavailable: like `gate`.
        """
        self._until_passed(self._gate.settle)

    @property
    def has_stream_gates(self) -> bool:
        """True if gates stop the stream, so that CUDA graphs can contain them; else the host."""
        return isinstance(self._gate, StreamGate)

    def capture_gate(self, stream: int | None = None) -> None:
        """Add a gate to the graph that `stream` is being captured into, for `launch`.

        Call it between two segments, outside a quantum, before serving starts.

        Args:
            stream: CUDA stream under capture; None for the lane's.

        Raises:
            InvalidArgument: the stream is not being captured.
            Unavailable: the lane's gates stop the host; see `has_stream_gates`.
        """
        if self._has_gates:
            at = self.stream if stream is None else stream
            self._gate_of_graphs().insert(at or 0)

    def launch(self, graph: CudaGraph) -> None:
        """Launch a graph with gates in the lane's stream, once its gates may be enqueued.

        The running segment continues in the graph up to its first gate. Such a graph is only
        launched here: its gates get new numbers each time.

        Args:
            graph: graph whose gates were captured by this lane; keep it until its work is done.

        Raises:
            InvalidArgument: the graph has no gate of this lane.
            StepAborted, Unavailable: like `gate`; after an abort the graph was not launched, or
                it has run to its end.
        """
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
            "the gates of this lane stop the host, which no graph can contain: capture each "
            "segment as a graph of its own, and call gate() between two of them"
        )

    def set_launches(self, per_segment: int) -> None:
        """Let the host run ahead of its stream, by as many segments as the launch queue holds.

        Until this call `gate` also waits until its segment may start: a launch into a full queue
        would block the host inside the driver, where no abort reaches it. Without effect if gates
        are not in a stream.

        Args:
            per_segment: launches of the longest segment, such as `LaunchMeasurement` finds; a
                captured graph is one launch.

        Raises:
            InvalidArgument: the queue cannot hold one such segment; the message has the longest
                one that fits.
        """
        if isinstance(self._gate, StreamGate):
            self._gate.set_launches(per_segment)
        self.runs_ahead = True

    def finish(self) -> None:
        """Wait for all segments; call it before you read results and unpin slabs.

        This is one more gate, after the last segment. On a GPU the host runs ahead of its stream.
        Here it waits until the stream passed that gate, and renews its leases; a wait inside the
        engine could not be aborted.

        Raises:
            StepAborted, Unavailable: like `gate`.
        """
        if self._has_gates:
            self._until_passed(self._gate.pass_)
        self.settle()

    def _until_passed(self, attempt: Callable[..., Verdict]) -> None:
        while True:
            self._renew()
            with self._reporting:
                verdict = attempt(timeout_ms=_LOOK_UP_MS)
            if verdict == Verdict.PASSED:
                self.passes += 1
                return
            if verdict == Verdict.ABORTED:
                raise StepAborted("serving took the slabs of this step back")
            if verdict == Verdict.SHUT_DOWN:
                raise Unavailable("the device was closed while a step was at its gate")
            self.on_look()

    def _is_late(self) -> bool:
        """True while slabs are overdue: steps are refused until they are empty."""
        if self._loans.is_closed:
            return False
        with self._reporting:
            return self._books.is_late(self._partition)

    def _renew(self) -> None:
        with self._reporting:
            self._loans.renew()

    def end_step(self) -> None:
        """End the step; the quantum calls this."""
        self.step_thread = 0
        self._gate.leave()
        self._gate.end_step()
        with self._reporting:
            self._loans.step_ended()

    @property
    def is_in_step(self) -> bool:
        """True while a step runs or waits at one of its gates."""
        return self.step_thread != 0

    @property
    def is_closed(self) -> bool:
        """True after the device stopped lending: it was closed, or rose gave back."""
        return self._loans.is_closed

    # ---- memory ---------------------------------------------------------------------------------

    @property
    def kv(self) -> KVSpace:
        """The borrower's view of the pool, or that of its first attention group."""
        return self.groups.spaces[0]

    def ensure_groups(self, blocks: Sequence[int]) -> bool:
        """Ensure `blocks[i]` free blocks in every group i at once, with a grant if necessary.

        Raises:
            InvalidArgument: `blocks` does not have one number per group.
        """
        missing = self.groups.missing_slabs(blocks)
        if missing == 0:
            return True
        with self._reporting:
            # Loans are counted in blocks of the first group.
            answer = self._loans.grow(missing * self.kv.blocks_per_slab)
        if isinstance(answer, Refusal):
            return False
        return self.groups.missing_slabs(blocks) == 0

    def ensure(self, blocks: int) -> bool:
        """Ensure `blocks` free blocks, with a grant if necessary; False if it is refused."""
        return self.grow(blocks) is None

    def grow(self, blocks: int) -> Refusal | None:
        """Ensure `blocks` free blocks, with a grant if necessary; return a refusal or None."""
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
            tokens: tokens of one sequence, > 0.

        Returns:
            A ticket whose `commit` returns block ids, or a refusal.
        """
        blocks = self.kv.geometry.blocks_for(tokens)
        refusal = self.grow(blocks)
        if refusal is not None:
            return refusal
        reservation = self.kv.allocator.reserve(blocks)
        if reservation is None:
            return Refusal(Reason.POOL_EMPTY, retry_after_ms=self._loans.retry_after_ms())
        return Ticket(self.kv.allocator, reservation)

    def alloc(self, blocks: int) -> list[int] | None:
        """Take `blocks` free blocks; None, without taking any, if fewer are free."""
        return self.kv.allocator.alloc(blocks)

    def pin(self, blocks: Iterable[int]) -> int:
        """Pin the slabs of `blocks` for a step, from its preparation to its completion."""
        return int(self.kv.allocator.pin(list(blocks)))

    def unpin(self, pin: int) -> None:
        """Release a pin; empty slabs under revocation leave inside this call."""
        self.kv.allocator.unpin(pin)

    def slabs(self) -> list[int]:
        """Return the slabs on loan, except those being taken back."""
        return self._books.lent(self._partition)

    def slabs_max(self) -> int:
        """Return the maximum slabs it could ever hold, from its limit and serving's reserve."""
        return self._slabs_max

    @property
    def takes_ranks(self) -> bool:
        """True if the arbiter chooses slabs by `rank` instead of `on_revoke`."""
        return self._loans.takes_ranks

    def rank(self, slabs: Sequence[int]) -> None:
        """Set the order in which slabs are taken back; for lanes that take ranks.

        A rank ends with its slab's loan. Idle slabs go before all others.
        """
        with self._reporting:
            self._loans.rank(slabs)

    def give_back_idle(self) -> int:
        """Give back slabs without used blocks or pins; return their number."""
        with self._reporting:
            return self._books.give_idle(self._partition)

    def retry_after_ms(self) -> float:
        """Return how long growth must wait after a revocation, in milliseconds."""
        return self._loans.retry_after_ms()

    def leaving(self) -> frozenset[int]:
        """Return the slabs to empty: those being taken back and those already late."""
        return frozenset(self._books.leaving(self._partition))
