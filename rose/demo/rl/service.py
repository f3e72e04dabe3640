"""The trainer's ear: a gRPC server on loopback that takes trajectories and answers where it is."""

import hmac
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Protocol, TypeVar

import grpc
import msgspec

from rose.addresses import loopback
from rose.closing import Closing
from rose.demo.rl.messages import (
    FORMAT,
    MESSAGE_BYTES_MAX,
    SERVICE,
    STATUS,
    SUBMIT,
    TOKEN_KEY,
    AskStatus,
    Submit,
    Submitted,
    TrainerStatus,
)
from rose.demo.rl.trajectory import Trajectory
from rose.errors import InvalidArgument, Unavailable

_THREADS: Final = 2
_GRACE_S: Final = 1.0

Message = TypeVar("Message", Submit, AskStatus)


class Ear(Protocol):
    """What the server asks; from its own threads."""

    def submit(self, trajectories: Sequence[Trajectory]) -> Submitted:
        """Take trajectories."""
        ...

    def status(self) -> TrainerStatus:
        """Return where the trainer is."""
        ...


class TrainerServer(Closing):
    """Serves from the moment it is made until `close`, which joins its threads.

    Args:
        ear: what answers.
        token: what every call must show.
        address: loopback, with port 0 for any.

    Raises:
        InvalidArgument: the address is not one of this machine's own.
        Unavailable: the port is taken.
    """

    def __init__(self, ear: Ear, *, token: str, address: str = "127.0.0.1:0") -> None:
        loopback(address)
        self._ear = ear
        self._token = token
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="rose-trainer")
        self._server = grpc.server(
            self._pool,
            options=[
                ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
                ("grpc.so_reuseport", 0),
            ],
        )
        methods = {
            SUBMIT: grpc.unary_unary_rpc_method_handler(self._submit),
            STATUS: grpc.unary_unary_rpc_method_handler(self._status),
        }
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, methods),)
        )
        try:
            port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise Unavailable(f"the trainer cannot listen on {address}: {error}") from error
        self.address = f"{address.rpartition(':')[0]}:{port}"
        self._server.start()

    def close(self) -> None:
        """Answer what is being asked, then no more."""
        self._server.stop(_GRACE_S).wait()
        self._pool.shutdown()

    def _submit(self, request: bytes, context: Any) -> bytes:
        message = self._read(request, context, Submit)
        return _answered(context, lambda: self._ear.submit(message.trajectories))

    def _status(self, request: bytes, context: Any) -> bytes:
        self._read(request, context, AskStatus)
        return _answered(context, self._ear.status)

    def _read(self, request: bytes, context: Any, kind: type[Message]) -> Message:
        """Decode a message, or end the call: `abort` raises."""
        shown = dict(context.invocation_metadata()).get(TOKEN_KEY, "")
        if not hmac.compare_digest(shown.encode(), self._token.encode()):
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token is not this trainer's")
        try:
            message = msgspec.msgpack.decode(request, type=kind)
        except msgspec.DecodeError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the message is malformed: {error}")
            raise
        if message.format != FORMAT:
            context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"the message has format {message.format}, this trainer reads {FORMAT}",
            )
        return message


def _answered(context: Any, answer: Callable[[], Submitted | TrainerStatus]) -> bytes:
    try:
        return msgspec.msgpack.encode(answer())
    except InvalidArgument as error:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        raise
