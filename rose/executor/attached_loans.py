"""The loans of a borrower whose lender is in another process."""

import threading
from typing import Final

from rose._core import Attachment, HostGate, SlabState
from rose.errors import CorruptData, RoseError, Unavailable
from rose.events import Reason, Refusal
from rose.executor.channel import Channel
from rose.executor.lender import Lease
from rose.executor.messages import Answer, AskGrow, AskReason, Granted, Question, Refused, Welcome
from rose.units import NS_PER_MS

# A device that does not answer for so long is as good as gone: nothing more is borrowed.
_ANSWER_S: Final = 5.0


class AttachedLoans:
    """Asks for slabs over a connection; everything else it reads in shared memory.

    Any thread. The lock guards the connection: a question and its answer belong together.
    """

    def __init__(
        self,
        attachment: Attachment,
        channel: Channel,
        welcome: Welcome,
        gate: HostGate,
    ) -> None:
        """Made by `AttachedDevice.rollout`."""
        self._attachment = attachment
        self._channel = channel
        self._welcome = welcome
        self._gate = gate
        self._lock = threading.Lock()
        self._no_growth_before_ns = 0
        self._stamped_ns = 0
        self.closed_because: str | None = None

    # ---- asking ---------------------------------------------------------------------------------

    def _ask(self, question: Question) -> Answer | Question:
        with self._lock:
            self._channel.send(question)
            answer, _ = self._channel.receive(timeout_s=_ANSWER_S)
            return answer

    def grow(self, blocks: int) -> Lease | Refusal:
        """Ask for slabs that hold up to `blocks` more blocks."""
        if self.is_closed:
            return Refusal(Reason.CLOSED)
        if self.retry_after_ms() > 0:
            return Refusal(Reason.RESERVE_AT_RISK, retry_after_ms=self.retry_after_ms())
        try:
            answer = self._ask(AskGrow(blocks))
        except RoseError as error:
            self.end(str(error))
            return Refusal(Reason.CLOSED)
        match answer:
            case Granted(lease_id=lease_id, lease_epoch=lease_epoch):
                self._attachment.admit()
                return Lease(lease_id, lease_epoch)
            case Refused(reason=name, retry_after_ms=wait_ms) if name in Reason.__members__:
                wait_ns = int(wait_ms * NS_PER_MS)
                self._no_growth_before_ns = self._attachment.now_ns() + wait_ns
                return Refusal(Reason[name], retry_after_ms=wait_ms)
        raise CorruptData("a device that answers a wish for slabs with something else")

    def why_refused(self) -> Reason:
        """Say why the gate stays closed, as far as the device tells."""
        if self.is_closed:
            return Reason.CLOSED
        try:
            answer = self._ask(AskReason())
        except RoseError as error:
            self.end(str(error))
            return Reason.CLOSED
        if isinstance(answer, Refused) and answer.reason in Reason.__members__:
            return Reason[answer.reason]
        return Reason.SERVING_BUSY

    def give_back_idle(self) -> int:
        """Let go of slabs without a block in use or a pin; returns how many went."""
        return self._attachment.give_idle()

    # ---- telling --------------------------------------------------------------------------------

    def renew(self) -> None:
        """Stamp the mailbox: whoever lends renews the leases of a tenant that does."""
        now_ns = self._attachment.now_ns()
        if now_ns - self._stamped_ns >= self._welcome.lease_ttl_ms * NS_PER_MS / 16:
            self._stamped_ns = now_ns
            self._attachment.beat(progress=self._gate.passed)

    def step_ended(self) -> None:
        """Do nothing: slabs that came empty have left through the mailbox."""

    # ---- what shared memory says ----------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """Whether lending is over."""
        return self.closed_because is not None

    def is_late(self) -> bool:
        """Whether slabs whose deadline has passed are still in use, as far as the ledger tells."""
        partition = self._welcome.partition
        try:
            partitions = self._attachment.ledger.partitions()
        except Unavailable:  # Its writer lost its core; the mailbox closes late slabs anyway.
            return False
        return any(one.id == partition and one.quarantined > 0 for one in partitions)

    @property
    def is_gate_shut(self) -> bool:
        """Whether no step will ever start again: serving's rose gave everything back, say."""
        return self._gate.is_shut_down()

    def retry_after_ms(self) -> float:
        """How long growth is held off, in milliseconds, as the device said last."""
        return max(0.0, (self._no_growth_before_ns - self._attachment.now_ns()) / NS_PER_MS)

    def lent_slabs(self) -> list[int]:
        """The slabs on loan that are not being taken back."""
        return self._in_states(SlabState.GRANTED)

    def leaving_slabs(self) -> frozenset[int]:
        """The slabs to be emptied: those being taken back, and those that are late already."""
        late = self._in_states(SlabState.QUARANTINED)
        return frozenset(self._attachment.leaving()) | frozenset(late)

    def _in_states(self, *states: SlabState) -> list[int]:
        partition = self._welcome.partition
        records = self._attachment.ledger.records()
        return [
            slab
            for slab, record in enumerate(records)
            if record.owner == partition and record.state in states
        ]

    def slabs_max(self) -> int:
        """The most slabs the borrower could ever hold."""
        return self._welcome.slabs_max

    # ---- the end --------------------------------------------------------------------------------

    def close(self, why: str) -> None:
        """Borrow no more; the first reason is kept."""
        if self.closed_because is None:
            self.closed_because = why

    def end(self, why: str) -> None:
        """Borrow no more, and let a step go that waits at its gate: nobody will open it."""
        self.close(why)
        self._gate.abandon()
