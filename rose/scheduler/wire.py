"""Messages between a scheduler and a worker in another process, and their bytes.

A message is a msgpack array `[format, word, body]`: the format number, the word that names the
body's type, and the body. A body is a dataclass of `rose.scheduler.worker` or of this file, encoded
as a map. Enums are encoded as their values. The layout of a body may change only together with
`FORMAT`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import msgspec

from rose.errors import CorruptData, InvalidArgument
from rose.scheduler.worker import (
    GrantChanged,
    TurnOutput,
    TurnRequest,
    VersionCommitted,
    WorkerEvent,
    WorkerKind,
    WorkerLost,
)

FORMAT: Final = 2
# Enough for a context of half a million tokens; a longer message is a mistake or an attack.
MESSAGE_BYTES_MAX: Final = 4 << 20

# gRPC names of the stream.
SERVICE: Final = "rose.scheduler.Worker"
METHOD: Final = "Turns"
# Metadata key of the token that the worker's process gave to its parent.
TOKEN_KEY: Final = "rose-token"
OPTIONS: Final = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    # No proxy from the environment between two processes of one machine.
    ("grpc.enable_http_proxy", 0),
    # Another process must not listen on the same port and intercept schedulers.
    ("grpc.so_reuseport", 0),
    # Separate connections per channel, so that a slow one does not delay another.
    ("grpc.use_local_subchannel_pool", 1),
)


@dataclass(frozen=True, slots=True)
class StopTurn:
    """Recall the turn of a trajectory."""

    trajectory: int


@dataclass(frozen=True, slots=True)
class Ping:
    """Sign of life of the scheduler."""


@dataclass(frozen=True, slots=True)
class Greeting:
    """First message of a worker: its identity."""

    number: int
    kind: WorkerKind


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Sign of life of the worker's process."""


Command: TypeAlias = TurnRequest | StopTurn | Ping
News: TypeAlias = WorkerEvent | Greeting | Heartbeat


class _Envelope(msgspec.Struct, array_like=True):
    format: int
    word: str
    body: msgspec.Raw


_COMMANDS: Final[Mapping[str, type]] = {"start": TurnRequest, "stop": StopTurn, "ping": Ping}
EVENTS: Final[Mapping[str, type]] = {
    "output": TurnOutput,
    "grant": GrantChanged,
    "committed": VersionCommitted,
    "lost": WorkerLost,
}
_NEWS: Final[Mapping[str, type]] = {"greeting": Greeting, "heartbeat": Heartbeat, **EVENTS}
_WORD_OF: Final = {kind: word for word, kind in (*_COMMANDS.items(), *_NEWS.items())}


def encode(message: Command | News) -> bytes:
    """Encode a message.

    Raises:
        InvalidArgument: the message is too long, or has a value that the format cannot hold.
    """
    kind = type(message)
    try:
        body = msgspec.msgpack.encode(message)
        frame = msgspec.msgpack.encode(_Envelope(FORMAT, _WORD_OF[kind], msgspec.Raw(body)))
    except (TypeError, OverflowError, UnicodeEncodeError) as error:
        raise InvalidArgument(f"a {kind.__name__} cannot be sent: {error}") from error
    if len(frame) > MESSAGE_BYTES_MAX:
        raise InvalidArgument(
            f"a {kind.__name__} of {len(frame)} bytes cannot be sent: "
            f"at most {MESSAGE_BYTES_MAX} are allowed"
        )
    return frame


def decode_command(frame: bytes) -> Command:
    """Decode a command.

    Raises:
        CorruptData: the frame is not a command, or has another format.
    """
    command: Command = _decode(_COMMANDS, frame)
    return command


def decode_news(frame: bytes) -> News:
    """Decode a message of a worker; errors are those of `decode_command`."""
    news: News = _decode(_NEWS, frame)
    return news


def _decode(words: Mapping[str, type], frame: bytes) -> Any:
    if len(frame) > MESSAGE_BYTES_MAX:
        raise CorruptData(
            f"a message of {len(frame)} bytes: at most {MESSAGE_BYTES_MAX} are allowed"
        )
    try:
        envelope = msgspec.msgpack.decode(frame, type=_Envelope)
        if envelope.format != FORMAT:
            raise CorruptData(
                f"a message of format {envelope.format}: this rose uses format {FORMAT}; "
                "run the same version on both sides"
            )
        if envelope.word not in words:
            raise CorruptData(f"a message '{envelope.word[:40]}' is unknown in this direction")
        return msgspec.msgpack.decode(envelope.body, type=words[envelope.word])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptData(f"a message cannot be read: {error}") from error
