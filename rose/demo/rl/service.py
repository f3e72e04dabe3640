"""The trainer's gRPC server on loopback, which takes trajectories, and the client of its parent."""

import hmac
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

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
    SUBMIT_MAX,
    SUBMIT_TOKENS_MAX,
    TOKEN_KEY,
    AskStatus,
    Submit,
    Submitted,
    TrainerStatus,
)
from rose.demo.rl.training import Training
from rose.demo.rl.trajectory import Trajectory
from rose.errors import CorruptData, DeadlineExceeded, InvalidArgument, RoseError, Unavailable

_THREADS: Final = 2
_GRACE_S: Final = 1.0

Message = TypeVar("Message", Submit, AskStatus)


class TrainerServer(Closing):
    """Serves from the moment it is made until `close`, which joins its threads.

    Args:
        training: what answers; from threads of the server.
        token: what every call must show.
        address: loopback, with port 0 for any.

    Raises:
        InvalidArgument: the address is not one of this machine's own.
        Unavailable: the port is taken.
    """

    def __init__(self, training: Training, *, token: str, address: str = "127.0.0.1:0") -> None:
        loopback(address)
        self._training = training
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
        return _answered(context, lambda: self._training.submit(message.trajectories))

    def _status(self, request: bytes, context: Any) -> bytes:
        self._read(request, context, AskStatus)
        return _answered(context, self._training.status)

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


# A step of training on a shared core can keep the trainer's other threads waiting for seconds.
DEADLINE_S: Final = 30.0
_RECONNECT_MS: Final = 1000

_ERRORS: Final[dict[grpc.StatusCode, type[RoseError]]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgument,
    grpc.StatusCode.UNAUTHENTICATED: InvalidArgument,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
}

Answer = TypeVar("Answer", Submitted, TrainerStatus)


class TrainerClient(Closing):
    """Talks to one incarnation of a trainer; any thread.

    Every call ends within the deadline. After `Unavailable` or `DeadlineExceeded` the caller does
    not know whether a submission arrived: it keeps the trajectories and sends them again, to this
    trainer or to the next incarnation, which knows by number what it has.

    Args:
        address: as the trainer printed it.
        token: as the trainer printed it.
        deadline_s: of each call, > 0.
    """

    def __init__(self, address: str, token: str, *, deadline_s: float = DEADLINE_S) -> None:
        loopback(address)
        if deadline_s <= 0:
            raise InvalidArgument(f"deadline_s is {deadline_s}, give a number above 0")
        self._deadline_s = deadline_s
        self._metadata = ((TOKEN_KEY, token),)
        self._channel = grpc.insecure_channel(
            address,
            options=[
                # Connections are not shared: a client made for a trainer that has just come back
                # must not sit out what another one waits for since it lost the one before.
                ("grpc.use_local_subchannel_pool", 1),
                ("grpc.max_reconnect_backoff_ms", _RECONNECT_MS),
                ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
                ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
                # A proxy of the environment has no business within one machine.
                ("grpc.enable_http_proxy", 0),
            ],
        )
        self._submit = self._channel.unary_unary(f"/{SERVICE}/{SUBMIT}")
        self._status = self._channel.unary_unary(f"/{SERVICE}/{STATUS}")

    def submit(self, trajectories: Sequence[Trajectory]) -> Submitted:
        """Send trajectories; one that was sent before counts once.

        Raises:
            InvalidArgument: the token is wrong.
            Unavailable: the trainer is gone.
            DeadlineExceeded: it did not answer in time.
        """
        accepted: list[int] = []
        known: list[int] = []
        later: list[int] = []
        refused: dict[int, str] = {}
        for part in _messages(trajectories):
            answer = self._call(self._submit, part, Submitted)
            accepted += answer.accepted
            known += answer.known
            later += answer.later
            refused |= answer.refused
        return Submitted(tuple(accepted), tuple(known), tuple(later), refused)

    def status(self) -> TrainerStatus:
        """Ask where the trainer is.

        Raises:
            InvalidArgument: the token is wrong.
            Unavailable: the trainer is gone.
            DeadlineExceeded: it did not answer in time.
        """
        return self._call(self._status, AskStatus(), TrainerStatus)

    def close(self) -> None:
        """End the connection."""
        self._channel.close()

    def _call(
        self,
        call: grpc.UnaryUnaryMultiCallable,
        message: Submit | AskStatus,
        kind: type[Answer],
    ) -> Answer:
        try:
            packed = call(
                msgspec.msgpack.encode(message), timeout=self._deadline_s, metadata=self._metadata
            )
            answer = msgspec.msgpack.decode(packed, type=kind)
        except grpc.RpcError as error:
            failure = _ERRORS.get(error.code(), Unavailable)
            raise failure(f"the trainer: {error.details()}") from error
        except msgspec.DecodeError as error:
            raise CorruptData(f"the trainer's answer cannot be read: {error}") from error
        if answer.format != FORMAT:
            raise CorruptData(f"the trainer answers in format {answer.format}, not {FORMAT}")
        return answer


def _messages(trajectories: Sequence[Trajectory]) -> Iterator[Submit]:
    """Cut what is to be sent into messages that each have room for their part."""
    part: list[Trajectory] = []
    tokens = 0
    for one in trajectories:
        tokens += len(one.tokens)
        if part and (len(part) == SUBMIT_MAX or tokens > SUBMIT_TOKENS_MAX):
            yield Submit(tuple(part))
            part, tokens = [], len(one.tokens)
        part.append(one)
    if part:
        yield Submit(tuple(part))
