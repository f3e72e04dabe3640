"""Questions of an operator to a device in another process; each uses its own connection."""

from pathlib import Path

from rose._core import LedgerView
from rose.errors import CorruptData, Unavailable
from rose.executor.channel import Channel, close_all
from rose.executor.messages import AskLedger, Ledger, Rejected, SetLimit


def ask_device(
    socket_path: str | Path, question: AskLedger | SetLimit, *, timeout_s: float
) -> tuple[LedgerView, Ledger]:
    """Send a question, and return the ledger and the message that came with it.

    Raises:
        CorruptData: a program that is not a device of rose listens at `socket_path`.
        DeadlineExceeded: the device does not answer in time.
        Unavailable: no device listens at `socket_path`, or the device rejects the question.
    """
    with Channel.connect(socket_path, timeout_s=timeout_s) as channel:
        channel.send(question)
        answer, descriptors = channel.receive(timeout_s=timeout_s)
    try:
        match answer:
            case Ledger() if len(descriptors) == 1:
                return LedgerView.open(descriptors[0]), answer
            case Rejected(sentence=sentence):
                raise Unavailable(sentence)
        raise CorruptData(
            f"{socket_path} must be the socket of a rose device, but another program answered: "
            "check the path"
        )
    finally:
        close_all(descriptors)
