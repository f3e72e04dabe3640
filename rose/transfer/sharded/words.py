"""Calls of ranks to the publisher, and the answers, as checked msgpack."""

from typing import Final, TypeAlias, TypeVar

import msgspec

from rose.errors import CorruptData, InvalidArgument
from rose.transfer.manifest import Version
from rose.transfer.sharded.barrier import Verdict

# Longest wait of the publisher before it answers, in seconds; the rank asks again.
ANSWER_S: Final = 2.0


class Words(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base of all calls and answers."""


class AskTensors(Words, frozen=True, tag="tensors"):
    """Request the names, shapes and dtypes of the trainer's tensors."""


class Join(Words, frozen=True, tag="join"):
    """Take part as a rank, and request its part of the plan.

    Args:
        replica: name of the engine; "" for a rank of the trainer.
        rank: rank of the caller.
        ranks: number of ranks.
        session: identity of the process.
        shards: shard map of the rank, as a file.
        address: where a rank of the trainer serves its part.
    """

    replica: str
    rank: int
    ranks: int
    session: str
    shards: bytes
    address: str = ""


class Aim(Words, frozen=True, tag="aim"):
    """Request the version that a rank of an engine should stage next.

    Args:
        epoch: identity of the publisher that the rank has joined.
        replica: name of the engine.
        rank: rank of the caller.
        session: identity of the process.
        after_n: number of the newest version that the rank knows; wait for a higher one.
        wait_s: longest wait, in seconds.
        gone: version that the publisher could not make for the rank.
    """

    epoch: str
    replica: str
    rank: int
    session: str
    after_n: int
    wait_s: float
    gone: Version | None = None


class Meet(Words, frozen=True, tag="meet"):
    """State at the barrier that a version is staged, committed, or failed.

    Args:
        epoch: identity of the publisher that the rank has joined.
        replica: name of the engine.
        rank: rank of the caller.
        session: identity of the process.
        version: the version.
        within_s: time for the other ranks, in seconds.
        number: number of the round, once the rank has committed or failed; None before.
        failure: why the rank failed; "" if it did not.
    """

    epoch: str
    replica: str
    rank: int
    session: str
    version: Version
    within_s: float
    number: int | None = None
    failure: str = ""


class AskStep(Words, frozen=True, tag="step"):
    """Request the result of an update; the caller is a rank of the trainer.

    Args:
        number: number of the update, counted by all ranks.
        rank: rank that asks.
        session: its process.
    """

    number: int
    rank: int
    session: str


class Tensors(Words, frozen=True, tag="are"):
    """Answer to `AskTensors`.

    Args:
        epoch: identity of the publisher.
        shards: shard map without pieces, as a file; b"" while ranks of the trainer are missing.
    """

    epoch: str
    shards: bytes


class Joined(Words, frozen=True, tag="joined"):
    """Answer to `Join`.

    Args:
        epoch: identity of the publisher.
        missing: ranks that have not joined yet.
        layout: layout id of the plan; "" if there is no plan yet.
        places: the rank's part of the plan, as a file.
        step: number of the trainer's last finished update.
    """

    epoch: str
    missing: tuple[int, ...] = ()
    layout: str = ""
    places: bytes = b""
    step: int = 0


class Aimed(Words, frozen=True, tag="aimed"):
    """Answer to `Aim`.

    Args:
        epoch: identity of the publisher.
        layout: layout id of its plan.
        target: version that all ranks of the engine should stage; None if there is none.
    """

    epoch: str
    layout: str
    target: Version | None


class Met(Words, frozen=True, tag="met"):
    """Answer to `Meet`: see `Ruling`."""

    epoch: str
    verdict: Verdict
    number: int
    reason: str


class Stepped(Words, frozen=True, tag="stepped"):
    """Answer to `AskStep`.

    Args:
        epoch: identity of the publisher.
        is_over: whether the update has ended.
        n: number of the newest version.
        failure: why the update failed; "" if it did not.
    """

    epoch: str
    is_over: bool
    n: int
    failure: str = ""


Call: TypeAlias = AskTensors | Join | Aim | Meet | AskStep
Answer: TypeAlias = Tensors | Joined | Aimed | Met | Stepped
A = TypeVar("A", Tensors, Joined, Aimed, Met, Stepped)

_ENCODER: Final = msgspec.msgpack.Encoder()
_CALLS: Final = msgspec.msgpack.Decoder(Call)
_ANSWERS: Final = msgspec.msgpack.Decoder(Answer)


def packed(words: Words) -> bytes:
    """Encode a call or an answer."""
    return _ENCODER.encode(words)


def call_of(content: bytes) -> Call:
    """Decode a call.

    Raises:
        InvalidArgument: the bytes are not a call.
    """
    try:
        call: Call = _CALLS.decode(content)
    except msgspec.MsgspecError as error:
        raise InvalidArgument(f"these bytes are no call of a rank: {error}") from None
    return call


def answer_of(content: bytes, kind: type[A]) -> A:
    """Decode an answer.

    Raises:
        CorruptData: the bytes are not such an answer.
    """
    try:
        answer = _ANSWERS.decode(content)
    except msgspec.MsgspecError as error:
        raise CorruptData(f"these bytes are no answer to a rank: {error}") from None
    if not isinstance(answer, kind):
        raise CorruptData(f"a rank got {type(answer).__name__} instead of {kind.__name__}")
    return answer
