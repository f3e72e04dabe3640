"""The loans of a borrower whose lender runs in another process."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from rose._core import Attachment, HostGate
from rose.errors import CorruptData, RoseError
from rose.events import Reason, Refusal, SegmentLimit
from rose.executor.channel import Channel, close_all
from rose.executor.lent_window import LentWindow
from rose.executor.messages import Answer, AskGrow, AskReason, Granted, Question, Refused
from rose.memory import LentSlabs
from rose.units import NS_PER_MS

# A device that does not answer within this time counts as gone: borrowing ends.
_ANSWER_S: Final = 5.0


class AttachedLoans:
    """Requests slabs, and asks for reasons of refusals, over a connection.

    Everything else goes through shared memory. Any thread may call the methods. The lock guards the
    connection: no other question comes between a question and its answer.
    """

    takes_ranks = True  # The other process's arbiter chooses slabs by rank, without `on_revoke`.

    def __init__(
        self,
        attachment: Attachment,
        channel: Channel,
        gate: HostGate,
        window: LentWindow | None,
    ) -> None:
        """Made by `AttachedDevice.rollout`; `window` is None if the whole pool is mapped."""
        self._attachment = attachment
        self._channel = channel
        self._gate = gate
        self._window = window
        self._lock = threading.Lock()
        self._no_growth_before_ns = 0
        self.closed_because: str | None = None

    # ---- requests -------------------------------------------------------------------------------

    def _ask(self, question: Question) -> tuple[Answer | Question, list[int]]:
        """Return the answer and its descriptors. If no answer arrives, borrowing ends."""
        try:
            with self._lock:
                self._channel.send(question)
                return self._channel.receive(timeout_s=_ANSWER_S)
        except RoseError as error:
            self.end(str(error))
            return Refused(Reason.CLOSED.name, 0.0), []

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
        answer, descriptors = self._ask(AskGrow(blocks))
        slabs = answer.slabs if isinstance(answer, Granted) else ()
        if len(descriptors) != len(slabs):
            close_all(descriptors)
            raise CorruptData(
                f"expected {len(slabs)} descriptors, one per slab, got {len(descriptors)}"
            )
        match answer:
            case Granted():
                if not self._admit(LentSlabs(dict(zip(slabs, descriptors, strict=True)))):
                    return Refusal(Reason.IN_STEP)  # A step has begun; it delays the mapping.
                return None
            case Refused(reason=name, retry_after_ms=wait_ms) if name in Reason.__members__:
                wait_ns = int(wait_ms * NS_PER_MS)
                self._no_growth_before_ns = self._attachment.now_ns() + wait_ns
                return Refusal(Reason[name], retry_after_ms=wait_ms)
        raise CorruptData("the device must answer a request for slabs with Granted or Refused")

    def _admit(self, lent: LentSlabs) -> bool:
        """Map the slabs if necessary and admit them; False if a step delays the mapping."""
        if self._window is not None:
            return self._window.take(lent)
        with lent:
            self._attachment.admit()
        return True

    def why_refused(self) -> Refusal:
        """Ask the device why the gate stays closed."""
        if self.is_closed:
            return Refusal(Reason.CLOSED)
        answer, strays = self._ask(AskReason())
        close_all(strays)
        if isinstance(answer, Refused) and answer.reason in Reason.__members__:
            segment = None if answer.segment is None else SegmentLimit(*answer.segment)
            return Refusal(Reason[answer.reason], answer.retry_after_ms, segment)
        return Refusal(Reason.SERVING_BUSY)

    # ---- reports --------------------------------------------------------------------------------

    def renew(self) -> None:
        """Do nothing: the attachment's thread sends heartbeats, and so the lender renews."""

    @contextmanager
    def planning(self) -> Iterator[None]:
        """Let the attachment's thread return no slab with blocks in use."""
        self._attachment.hold()
        try:
            yield
        finally:
            self._attachment.release()

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

    def rank(self, slabs: Sequence[int]) -> None:
        """Write the order of revocation into the mailbox.

        A slab's rank is valid until its loan ends.
        """
        self._attachment.set_ranks(slabs, range(len(slabs)))

    # ---- shared memory --------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """True after lending has ended."""
        return self.closed_because is not None

    @property
    def is_gate_shut(self) -> bool:
        """True if no step can ever start again, for example after `gave_back` in serving."""
        return self._gate.is_shut_down()

    def retry_after_ms(self) -> float:
        """Return for how many more milliseconds the loan must not grow, after a refusal."""
        return max(0.0, (self._no_growth_before_ns - self._attachment.now_ns()) / NS_PER_MS)

    # ---- the end --------------------------------------------------------------------------------

    def close(self, why: str) -> None:
        """Stop borrowing; the first reason is kept."""
        if self.closed_because is None:
            self.closed_because = why

    def end(self, why: str) -> None:
        """Stop borrowing, and release a step that waits at a gate which will never open."""
        self.close(why)
        self._gate.abandon()
