"""A borrower's side of its loans: requests for slabs, and reports through shared memory."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol

from rose._core import Attachment, Clock, HostGate
from rose.events import Reason, Refusal
from rose.executor.lent_window import LentWindow
from rose.memory import LentSlabs
from rose.units import NS_PER_MS

BEATS: Final = 16
"""Number of heartbeats of a borrower in a lease's TTL."""

SERVING_IS_GONE: Final = "serving's process has ended, or has stopped lending"


@dataclass(slots=True)
class StepPlan:
    """The slabs of a borrower that plans a step.

    Args:
        leaving: slabs to empty, because they are being taken back or are overdue.
        lent: all other slabs, when the plan began; see `RolloutLane.slabs` for those of now.
        order: slabs in the order in which they are to be taken, set by the borrower's engine. Idle
            slabs are taken before all others. A slab's rank is valid until its loan ends.
    """

    leaving: frozenset[int]
    lent: list[int]
    order: list[int] = field(default_factory=list)


class Line(Protocol):
    """A borrower's connection to its lender.

    In the lender's process it is the `Tenancy` itself, in another process a `SocketLine`.
    """

    def grow(self, blocks: int) -> LentSlabs | Refusal:
        """Request slabs for up to `blocks` more blocks.

        Returns:
            Descriptors of the granted slabs, or none if the borrower maps the whole pool; or the
            refusal.
        """
        ...

    def why_refused(self) -> Refusal:
        """Return why the gate stays closed."""
        ...


class Loans:
    """Requests slabs by a line to the lender. Everything else goes through shared memory.

    Any thread may call the methods.
    """

    def __init__(
        self,
        attachment: Attachment,
        line: Line,
        gate: HostGate,
        window: LentWindow | None,
        *,
        clock: Clock | Attachment,
    ) -> None:
        """Made by the device; `window` is None if the whole pool is mapped."""
        self.attachment = attachment
        self._line = line
        self._gate = gate
        self._window = window
        self._clock = clock
        self._no_growth_before_ns = 0
        self._closed_because: str | None = None

    # ---- requests -------------------------------------------------------------------------------

    def grow(self, blocks: int) -> Refusal | None:
        """Request slabs for up to `blocks` more blocks.

        Returns:
            None if slabs were granted, else the refusal.
        """
        if self.is_closed:
            return Refusal(Reason.CLOSED)
        if self._window is not None and not self._window.can_take:
            return Refusal(Reason.IN_STEP)
        if self.retry_after_ms() > 0:
            return Refusal(Reason.RESERVE_AT_RISK, retry_after_ms=self.retry_after_ms())
        match self._line.grow(blocks):
            case Refusal(retry_after_ms=wait_ms) as refusal:
                self._no_growth_before_ns = self._clock.now_ns() + int(wait_ms * NS_PER_MS)
                return refusal
            case lent:
                # If a step has begun in the meantime, the mapping is delayed until the step's end.
                return None if self._admit(lent) else Refusal(Reason.IN_STEP)

    def _admit(self, lent: LentSlabs) -> bool:
        """Map the slabs if necessary and admit them; False if a step delays the mapping."""
        if self._window is not None:
            return self._window.take(lent)
        with lent:
            self.attachment.look()
        return True

    def why_refused(self) -> Refusal:
        """Return why the gate stays closed."""
        return Refusal(Reason.CLOSED) if self.is_closed else self._line.why_refused()

    # ---- reports --------------------------------------------------------------------------------

    @contextmanager
    def planning(self) -> Iterator[StepPlan]:
        """Let the attachment's thread return no slab with blocks in use."""
        leaving, lent = self.attachment.begin_plan()
        plan = StepPlan(frozenset(leaving), lent)
        try:
            yield plan
        finally:
            self.attachment.end_plan(plan.order)

    def step_began(self) -> None:
        """Unmap nothing, and map no GPU memory, until `step_ended`."""
        if self._window is not None:
            self._window.step_began()

    def step_ended(self) -> None:
        """Map slabs granted during the step, and unmap some revoked slabs."""
        if self._window is not None:
            self._window.step_ended()

    def tidy(self) -> None:
        """Unmap some revoked slabs, unless a step runs."""
        if self._window is not None:
            self._window.tidy()

    # ---- shared memory --------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """True after lending has ended."""
        return self.closed_because is not None

    @property
    def closed_because(self) -> str | None:
        """Reason why lending has ended; None while it goes on."""
        if self._closed_because is None and self.is_gate_shut:
            return SERVING_IS_GONE
        return self._closed_because

    @property
    def is_gate_shut(self) -> bool:
        """True if no step can ever start again, for example after `gave_back` in serving."""
        return self._gate.is_shut_down()

    def retry_after_ms(self) -> float:
        """Return for how many more milliseconds the loan must not grow, after a refusal."""
        return max(0.0, (self._no_growth_before_ns - self._clock.now_ns()) / NS_PER_MS)

    # ---- the end --------------------------------------------------------------------------------

    def close(self, why: str) -> None:
        """Stop borrowing; the first reason is kept."""
        if self._closed_because is None:
            self._closed_because = why

    def end(self, why: str) -> None:
        """Stop borrowing, and release a step that waits at a gate which will never open."""
        self.close(why)
        self._gate.abandon()
