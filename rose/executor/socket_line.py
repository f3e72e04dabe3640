"""A borrower's connection to a lender in another process."""

import threading
from collections.abc import Callable
from typing import Final

from rose.errors import CorruptData, RoseError
from rose.events import Reason, Refusal, SegmentLimit
from rose.executor.channel import Channel, close_all
from rose.executor.messages import Answer, AskGrow, AskReason, Granted, Question, Refused
from rose.memory import LentSlabs

# A device that does not answer within this time counts as gone: borrowing ends.
_ANSWER_S: Final = 5.0


class SocketLine:
    """Asks questions over a socket. Any thread may call the methods.

    The lock guards the connection: no other question comes between a question and its answer.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._lock = threading.Lock()
        # Called with the reason if no answer arrives; borrowing must then end.
        self.on_lost: Callable[[str], None] = lambda _why: None

    def _ask(self, question: Question) -> tuple[Answer | Question, list[int]]:
        """Return the answer and its descriptors."""
        try:
            with self._lock:
                self._channel.send(question)
                return self._channel.receive(timeout_s=_ANSWER_S)
        except RoseError as error:
            self.on_lost(str(error))
            return Refused(Reason.CLOSED.name, 0.0), []

    def grow(self, blocks: int) -> LentSlabs | Refusal:
        """Request slabs for up to `blocks` more blocks.

        Raises:
            CorruptData: the answer is not an answer to this request.
        """
        answer, descriptors = self._ask(AskGrow(blocks))
        slabs = answer.slabs if isinstance(answer, Granted) else ()
        if len(descriptors) != len(slabs):
            close_all(descriptors)
            raise CorruptData(
                f"expected {len(slabs)} descriptors, one per slab, got {len(descriptors)}"
            )
        match answer:
            case Granted():
                return LentSlabs(dict(zip(slabs, descriptors, strict=True)))
            case Refused(reason=name, retry_after_ms=wait_ms) if name in Reason.__members__:
                return Refusal(Reason[name], retry_after_ms=wait_ms)
        raise CorruptData("the device must answer a request for slabs with Granted or Refused")

    def why_refused(self) -> Refusal:
        """Ask the device why the gate stays closed."""
        answer, strays = self._ask(AskReason())
        close_all(strays)
        if isinstance(answer, Refused) and answer.reason in Reason.__members__:
            segment = None if answer.segment is None else SegmentLimit(*answer.segment)
            return Refusal(Reason[answer.reason], answer.retry_after_ms, segment)
        return Refusal(Reason.SERVING_BUSY)
