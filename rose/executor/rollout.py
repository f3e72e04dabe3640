"""The borrower's lane: leased memory, quanta of compute, and the way to give both back."""

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import Self

from rose._core import Verdict
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

# Longer than the creditor takes to answer, short enough to ask again and again.
_ASK_MS: Final = 5.0
# A parked borrower looks up this often, to renew its leases; waking it earlier costs a futex.
_LOOK_UP_MS: Final = 50.0


@dataclass(slots=True)
class Quantum:
    """The right to run one step, segment by segment. Ends with the `with` block.

    Within it, `RolloutLane.gate` must be called between segments; `StepAborted` raised there
    must reach the engine, which rolls the step back.
    """

    lane: "RolloutLane"

    def __enter__(self) -> Self:
        """Run the step."""
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
    """What a borrower calls. One thread runs its steps; the other methods are for any thread.

    The life of a step: `try_step` → `pin` → `gate`, `gate`, … → `finish` → `unpin` → end of the
    quantum. A refusal is a value. `StepAborted` is the one exception that is part of the protocol.
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
            groups: its views of the pool, one for each attention group of its model.
            gate: that its segments pass.
            loans: of its slabs.
            reporting: around what is rose's own.
            on_revoke: frees blocks when serving wants slabs; None has the arbiter pick them.
            why_refused: names the reason for which a step is refused.
            slabs_max: its limit, or what serving's reserve leaves.
            gpu: device of its work; None for a CPU.
            has_gates: False makes each step one segment, to see what gates within it are worth.
        """
        self.groups = groups
        # GPU work of its steps must be put into it; None on a CPU.
        self.stream = None if gpu is None else gpu.rollout.handle
        # Copies bytes of the host into the pool, in that stream.
        self.upload: Upload = HostUpload() if gpu is None else StreamUpload(gpu.rollout)
        self.on_revoke: OnRevoke = on_revoke or (lambda notice: notice.begin(()))
        self.on_room: Callable[[], None] = lambda: None
        # Called by the step's thread each time it looks up from a gate that stays closed.
        self.on_look: Callable[[], None] = lambda: None
        self.step_thread = 0
        # How often a quantum was granted or a gate passed: nobody runs while it stands still.
        self.passes = 0
        self._gate = gate
        self._loans = loans
        self._reporting = reporting
        self.why_refused = why_refused
        self._slabs_max = slabs_max
        self._has_gates = has_gates
        self._books = groups.arbiter
        self._partition = groups.partition

    # ---- compute --------------------------------------------------------------------------------

    def try_step(self, batch: Any = None, *, timeout_ms: float = _ASK_MS) -> Quantum | Refusal:
        """Ask to run one step.

        Args:
            batch: what will run; in idle mode a certificate depends on serving's load only.
            timeout_ms: how long to sleep at a closed gate before the answer is a refusal. Credit is
                granted only to who waits: with 0 a gate that serving closed may never open.
        """
        del batch
        self._renew()
        if self._is_late():
            return Refusal(Reason.LATE)
        with self._reporting:
            self._gate.begin_step()
            verdict = self._gate.pass_(timeout_ms=timeout_ms)
            if verdict == Verdict.PASSED:
                # What prepares a step waits for its stream: it must not be parked there.
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
        """End a segment, and wait until the next may start.

        Raises:
            StepAborted: serving needs slabs that this step pins; roll it back.
            Unavailable: the device was closed.
        """
        if self._has_gates:
            self._until_passed(self._gate.pass_)

    def finish(self) -> None:
        """Wait until all segments are done; call it before results are read and slabs unpinned.

        This is one more gate, behind the last segment. On a GPU the host has run ahead of its
        stream; it waits here until the stream has passed that gate, with its leases renewed, and
        not in a call of the engine's that an abort could not reach.

        Raises:
            StepAborted: as `gate`.
            Unavailable: as `gate`.
        """
        if self._has_gates:
            self._until_passed(self._gate.pass_)
        self._until_passed(self._gate.settle)

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
        """Whether a step is refused because slabs are overdue; empty them, then ask again."""
        if self._loans.is_closed:
            return False
        with self._reporting:
            return self._books.is_late(self._partition)

    def _renew(self) -> None:
        with self._reporting:
            self._loans.renew()

    def end_step(self) -> None:
        """End the step; called by the quantum."""
        self.step_thread = 0
        self._gate.leave()
        self._gate.end_step()
        with self._reporting:
            self._loans.step_ended()

    @property
    def is_in_step(self) -> bool:
        """Whether a step runs, or waits at a gate within it."""
        return self.step_thread != 0

    @property
    def is_closed(self) -> bool:
        """Whether the device lends no more: it was closed, or rose gave back."""
        return self._loans.is_closed

    # ---- memory ---------------------------------------------------------------------------------

    @property
    def kv(self) -> KVSpace:
        """Its view of the pool, or that of its model's first attention group."""
        return self.groups.spaces[0]

    def ensure_groups(self, blocks: Sequence[int]) -> bool:
        """Have `blocks[i]` free blocks of every group i at once, by a grant if need be.

        Raises:
            InvalidArgument: not one number for each group.
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
        """Have `blocks` free blocks, by a grant if need be; False when that is refused."""
        return self.grow(blocks) is None

    def grow(self, blocks: int) -> Refusal | None:
        """Have `blocks` free blocks, by a grant if need be, or say why not."""
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
        """Set blocks for `tokens` tokens aside.

        Args:
            tokens: of one sequence, > 0.

        Returns:
            A ticket whose `commit` gives block ids, or why not.
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
        """Take `blocks` free blocks; None, and nothing taken, when fewer are free."""
        return self.kv.allocator.alloc(blocks)

    def pin(self, blocks: Iterable[int]) -> int:
        """Hold the slabs of `blocks` for a step, from its preparation to its completion."""
        return int(self.kv.allocator.pin(list(blocks)))

    def unpin(self, pin: int) -> None:
        """Let go; slabs on revocation that are empty leave inside this call."""
        self.kv.allocator.unpin(pin)

    def slabs(self) -> list[int]:
        """The slabs on loan that are not being taken back."""
        return self._books.lent(self._partition)

    def slabs_max(self) -> int:
        """The most slabs it could ever hold: its limit, or what serving's reserve leaves."""
        return self._slabs_max

    @property
    def takes_ranks(self) -> bool:
        """Whether slabs are chosen without asking `on_revoke`, by the ranks of `rank`."""
        return self._loans.takes_ranks

    def rank(self, slabs: Sequence[int]) -> None:
        """Say which slabs to take first, the first of them first; for lanes that take ranks.

        A rank lasts as long as the slab is on loan; idle slabs go before all others.
        """
        with self._reporting:
            self._loans.rank(slabs)

    def give_back_idle(self) -> int:
        """Let go of slabs without a block in use or a pin; returns how many went."""
        with self._reporting:
            return self._books.give_idle(self._partition)

    def retry_after_ms(self) -> float:
        """How long growth is held off after a revocation, in milliseconds."""
        return self._loans.retry_after_ms()

    def leaving(self) -> frozenset[int]:
        """The slabs to be emptied: those being taken back, and those that are late already."""
        return frozenset(self._books.leaving(self._partition))
