"""The borrower's side of a device: sequences of rollouts, and steps that yield to serving."""

import itertools
import math
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Final

from typing_extensions import Self

from rose.api.models import Model, needs_of
from rose.api.tokens import Tokens
from rose.clock import BootClock
from rose.engines.victims import Progress, order_of_loss
from rose.errors import InvalidArgument, RoseError, StepAborted, Unavailable
from rose.events import Reason, Refusal
from rose.executor.device import CoServing
from rose.executor.inputs import is_integer, is_time_ms, require
from rose.executor.revocation import Notice
from rose.executor.rollout import Quantum, RolloutLane
from rose.memory import KVSpace
from rose.units import MS_PER_S, NS_PER_MS

# Longest single wait: within this time a waiting step notices a revocation or a close.
_LOOK_UP_MS: Final = 50.0
# If no sequence can proceed for this long, because each waits for blocks of the others, the last
# sequence gives up its blocks. This must exceed `Policy.regrow_after_ms`.
_STUCK_MS: Final = 500.0
_ANY_POOL_BYTES: Final = 1 << 50  # larger than any pool, so it limits nothing


@contextmanager
def borrow(
    path: str | Path, model: Model, *, limit_bytes: int | None = None
) -> Iterator["Borrower"]:
    """Attach a borrower to a device that serves in another process.

    Leaving the `with` block returns all lent memory; stop the steps first. When serving ends or
    takes all loans back, `Borrower.steps` raises `Unavailable`.

    Args:
        path: socket at which `Device.listen` of the other process listens.
        model: model of the rollouts, in any form that `Device.serving` accepts.
        limit_bytes: maximum KV memory on loan. None: all memory that serving does not need.

    Raises:
        InvalidArgument: the model is unknown, or its blocks do not fit the device's slabs.
        Unavailable: no device listens at `path`, another borrower is attached to it, or rose has
            failed in the device's process.
    """
    geometry = needs_of(model).geometry
    with CoServing.attach(path) as device:
        limit = _ANY_POOL_BYTES if limit_bytes is None else limit_bytes
        yield Borrower(device.rollout(geometry, limit_bytes=limit))


class Borrower:
    """The engine that runs rollouts on idle memory and compute.

    Made by `Device.borrower`, or by `borrow` in a process of its own.

    One thread runs the steps; any thread may call the other methods. When serving needs memory,
    rose takes the blocks of sequences outside the running step, fewest tokens first. It aborts the
    running step only if these blocks are not enough.
    """

    def __init__(self, lane: RolloutLane) -> None:
        self.lane = lane
        self._clock = BootClock()
        self._numbers = itertools.count()
        self._room = threading.Event()
        self._lock = threading.Lock()  # Guards the fields below and the blocks of all sequences.
        self._open: dict[str, Sequence] = {}
        self._in_flight: frozenset[str] = frozenset()
        lane.on_revoke = self._give_up
        lane.on_room = self._room.set
        self.tokens_max = lane.slabs_max() * self.kv.blocks_per_slab * self.kv.geometry.block_tokens
        """Maximum tokens of one sequence."""

    @property
    def kv(self) -> KVSpace:
        """KV space of the borrower; `kv.views()` has one array per layer, indexed by block id."""
        return self.lane.kv

    def sequence(self) -> "Sequence":
        """Create an empty sequence."""
        with self._lock:
            sequence = Sequence(self, next(self._numbers))
            self._open[sequence.name] = sequence
        return sequence

    def steps(
        self, sequences: Collection["Sequence"], *, timeout_ms: float = math.inf
    ) -> Iterator["BorrowerStep"]:
        """Yield steps until all tokens of `sequences` are computed.

        Run each step as `with step: forward(between=step.gate)`. Before a step is yielded, rose
        waits for memory and for a quantum, and pins the blocks of the step's sequences. An aborted
        step computes nothing; the next step repeats its tokens. `sequences` may change between
        steps.

        Args:
            sequences: the sequences to compute, most urgent first.
            timeout_ms: longest wait for a step, in milliseconds; then the iterator ends.

        Raises:
            Unavailable: the device stopped lending.
            InvalidArgument: a step was not run in a `with` block.
        """
        require(isinstance(sequences, Collection), "sequences must be a collection", sequences)
        for one in sequences:
            require(isinstance(one, Sequence), "sequences must be made by `sequence`", one)
        require(is_time_ms(timeout_ms), "timeout_ms must be at least 0", timeout_ms)
        while any(one.remaining for one in sequences):
            step = self._next_step(sequences, self._clock.now_ns() + timeout_ms * NS_PER_MS)
            if step is None:
                return
            try:
                yield step
            finally:
                was_run = step._is_over
                step._end(is_done=False)
            if not was_run:
                raise InvalidArgument("each yielded step must be run in a `with step:` block")

    def _next_step(
        self, sequences: Collection["Sequence"], deadline_ns: float
    ) -> "BorrowerStep | None":
        stuck_ns: float | None = None
        while (now_ns := self._clock.now_ns()) <= deadline_ns:
            left_ms = min(_LOOK_UP_MS, (deadline_ns - now_ns) / NS_PER_MS)
            with self._lock:
                refusal = self._fill(sequences)
                stuck_ns = None if refusal is None else stuck_ns or now_ns
                if stuck_ns is not None and now_ns - stuck_ns > _STUCK_MS * NS_PER_MS:
                    self._make_room(sequences)
                    stuck_ns = None
            answer = self.lane.try_step(timeout_ms=left_ms) if refusal is None else refusal
            if isinstance(answer, Quantum):
                step = self._begin(answer, sequences)
                if step is not None:
                    return step
            elif answer.reason is Reason.CLOSED:
                raise Unavailable(
                    "the device has stopped lending: it was closed, or rose failed there and gave "
                    "everything back to serving"
                )
            with self._lock:  # A notice of a revocation may have come while the lock was taken.
                self._empty(self.lane.leaving())
            if refusal is not None:
                self._room.wait(min(left_ms, refusal.retry_after_ms or left_ms) / MS_PER_S)
                self._room.clear()
        return None

    def _fill(self, sequences: Collection["Sequence"]) -> Refusal | None:
        """Take blocks for the remaining tokens of all sequences.

        Returns:
            A refusal if no sequence has all its blocks, else None.
        """
        missing = {one: one._missing_blocks(one.tokens) for one in sequences if one.remaining}
        wanted = sum(missing.values())
        ids = self.lane.alloc(wanted) if wanted > 0 else None
        if ids is not None:  # There is room for all: one call takes the blocks.
            for one, blocks in missing.items():
                one.blocks += ids[:blocks]
                del ids[:blocks]
            return None
        refusal: Refusal | None = None
        for one, blocks in missing.items():
            if blocks > 0 and refusal is None:
                refusal = self.lane.grow(blocks)
                one.blocks += (self.lane.alloc(blocks) if refusal is None else None) or []
        if any(one._is_ready for one in sequences):
            return None
        return Refusal(Reason.POOL_EMPTY) if refusal is None else refusal

    def _make_room(self, sequences: Collection["Sequence"]) -> None:
        """Free the blocks of the least urgent sequence, so that the others can proceed."""
        holders = [one for one in sequences if one.blocks]
        if len(holders) > 1:
            holders[-1]._lose()

    def _begin(self, quantum: Quantum, sequences: Collection["Sequence"]) -> "BorrowerStep | None":
        """Pin the blocks of all ready sequences.

        Returns:
            The step; None if serving took blocks in the meantime, so that no sequence is ready.
        """
        pin: int | None = None
        try:
            with self._lock, self.lane.planning() as plan:
                self._empty(plan.leaving)
                ready = tuple(one for one in sequences if one._is_ready)
                if ready:
                    pin = self.lane.pin(block for one in ready for block in one.blocks)
                    self._in_flight = frozenset(one.name for one in ready)
                    plan.order = self._cheapest_first(plan.lent)
        finally:
            if pin is None:
                quantum.__exit__(None, None, None)
        return None if pin is None else BorrowerStep(self, ready, quantum, pin)

    def _unpin(self, step: "BorrowerStep", pin: int, *, is_finished: bool) -> None:
        """Unpin a step's blocks, and count its tokens if it is finished. Only the step calls this.

        From here on serving may take the blocks.
        """
        with self._lock:
            self._in_flight = frozenset()
            self.lane.unpin(pin)
            for one in step.sequences:
                if is_finished:
                    one.computed, one.lost = step.tokens[one], False
                if one.is_closed:
                    one._free_blocks()
            self._empty(self.lane.leaving())

    def _undo(self, step: "BorrowerStep") -> None:
        """Let the next step compute a finished step's tokens again. Only the step calls this."""
        with self._lock:
            for one, (computed, lost) in step._before.items():
                one.computed, one.lost = min(one.computed, computed), one.lost or lost

    def _forget(self, sequence: "Sequence") -> None:
        """Free a sequence's blocks, now or after its running step. Only the sequence calls this."""
        with self._lock:
            if self._open.pop(sequence.name, None) is None:
                return
            sequence.is_closed = True
            if sequence.name not in self._in_flight:
                sequence._free_blocks()

    # ---- revocation -----------------------------------------------------------------------------

    def _give_up(self, notice: Notice) -> None:
        """Free the blocks of all sequences that use revoked slabs.

        Sequences of the running step keep their blocks. This runs in a thread of serving or of the
        keeper or, if the borrower is in another process than serving, in the watcher's thread.
        """
        if not self._lock.acquire(timeout=notice.remaining_s()):
            return
        try:
            self._empty(self.lane.leaving())
        finally:
            self._lock.release()

    def _cheapest_first(self, slabs: list[int]) -> list[int]:
        """Return the slabs on loan, the cheapest to lose first."""
        requests = [
            Progress(one.blocks, one.computed, -one.number, is_in_flight=name in self._in_flight)
            for name, one in self._open.items()
        ]
        return order_of_loss(slabs, requests, self.kv.allocator.slabs_of)

    def _empty(self, leaving: frozenset[int]) -> None:
        """Free all blocks of sequences that use `leaving` slabs and are not in the running step."""
        for name, one in self._open.items() if leaving else ():
            if name not in self._in_flight and one._slabs() & leaving:
                one._lose()


class Sequence(Tokens):
    """The tokens of one rollout; made by `Borrower.sequence`.

    rose owns the blocks: it may take them for serving between two steps, and the next step gets
    new blocks. A sequence whose blocks were taken is `lost`; its next step recomputes all tokens.
    """

    def __init__(self, borrower: Borrower, number: int) -> None:
        super().__init__(borrower.kv, tokens=0)
        self._borrower = borrower
        self.number = number
        self.name = f"sequence {number}"
        self.lost = False
        """True if the blocks were taken since the sequence's last step; `computed` is then 0."""

    def grow(self, tokens: int) -> None:
        """Add tokens for the next step to compute; that step waits for their blocks.

        Raises:
            InvalidArgument: the sequence is closed, `tokens` is negative, or the total exceeds
                `Borrower.tokens_max`.
        """
        if self.is_closed:
            raise InvalidArgument(f"{self.name} must be open to grow, but it is closed")
        require(is_integer(tokens), "tokens must be an integer", tokens)
        wanted = self.tokens + tokens
        if tokens < 0 or wanted > self._borrower.tokens_max:
            raise InvalidArgument(
                f"{self.name} cannot grow by {tokens} to {wanted} tokens: its total may only rise, "
                f"to at most {self._borrower.tokens_max}"
            )
        self.tokens = wanted

    def close(self) -> None:
        """End the sequence. Its blocks are freed now, or at the end of its running step."""
        self._borrower._forget(self)

    @property
    def _is_ready(self) -> bool:
        """True if tokens remain and all their blocks are present."""
        return self.remaining > 0 and not self._missing_blocks(self.tokens)

    def _slabs(self) -> frozenset[int]:
        return frozenset(self._kv.allocator.slabs_of(self.blocks))

    def _lose(self) -> None:
        """Free the blocks for serving. Only the borrower calls this."""
        if self.blocks:
            self._free_blocks()
            self.lost = True


class BorrowerStep:
    """The right to run one step, segment by segment; yielded by `Borrower.steps`.

    Enter it with `with`; call `gate` between layers; call `finish`; then read the results before
    the `with` block ends. After `finish` serving may take the blocks, so do not read KV there.
    """

    def __init__(
        self, borrower: Borrower, sequences: tuple[Sequence, ...], quantum: Quantum, pin: int
    ) -> None:
        self.sequences = sequences
        """Sequences of this step: all sequences with tokens to compute and blocks for them."""
        self.tokens = {one: one.tokens for one in sequences}
        """Number of computed tokens of each sequence after this step."""
        self.is_done = False
        """True after the step ran to its end; an aborted step computes nothing."""
        self._is_over = False
        self._borrower = borrower
        self._lane = borrower.lane
        self._quantum = quantum
        self._pin: int | None = pin
        self._before = {one: (one.computed, one.lost) for one in sequences}
        self._is_finished = False

    @property
    def stream(self) -> int | None:
        """CUDA stream (handle) on which the step must run; None on a CPU."""
        return self._lane.stream

    def gate(self) -> None:
        """End a segment, and wait until the next may start; call this between layers.

        Raises:
            StepAborted: serving takes the step's memory; let the exception leave the `with` block.
            Unavailable: the device was closed.
        """
        self._lane.gate()

    def finish(self) -> None:
        """Wait until all segments have run; call this before you read results within the step.

        Raises:
            StepAborted, Unavailable: as in `gate`.
        """
        self._lane.finish()
        self._is_finished = True
        self._unpin()

    def _unpin(self) -> None:
        pin, self._pin = self._pin, None
        if pin is not None:
            self._borrower._unpin(self, pin, is_finished=self._is_finished)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        failure: BaseException | None,
        _trace: TracebackType | None,
    ) -> bool:
        """End the step and suppress `StepAborted`: the next step computes the same tokens."""
        is_aborted = isinstance(failure, StepAborted)
        try:
            if failure is None and not self._is_finished:
                self.finish()
        except StepAborted:
            is_aborted = True
        finally:
            self._end(is_done=failure is None and self._is_finished)
        return is_aborted

    def _end(self, *, is_done: bool) -> None:
        """Drain the stream, then release the blocks and the quantum."""
        if self._is_over:
            return
        self._is_over = True
        try:
            if not self._is_finished and self._lane.stream is not None:
                with suppress(RoseError):
                    self._lane.finish()
            self._unpin()
            if not is_done:
                self._borrower._undo(self)
            self.is_done = is_done
        finally:
            self._quantum.__exit__(None, None, None)
