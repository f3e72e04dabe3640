"""A gRPC server that requires a token: for a log, or for the part of a trainer's rank."""

import hmac
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any, Final, NoReturn, TypeVar

import grpc

from rose.addresses import spelled
from rose.closing import Closing, Once
from rose.errors import OutOfMemory, RoseError, Unavailable
from rose.thread import ThreadPool
from rose.transfer.wire import messages
from rose.transfer.wire.credentials import add_port
from rose.transfer.wire.security import Rejections, Security

_CODES: Final = (
    (OutOfMemory, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (Unavailable, grpc.StatusCode.UNAVAILABLE),
)


class TokenMethods(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Finds the handler of a call, and refuses calls without the token.

    Args:
        token: token to require.
        methods: handlers by full method name.
        has_room: function that tells whether a thread may be used to refuse a call without the
            token.
    """

    def __init__(
        self, token: bytes, methods: Mapping[str, Any], has_room: Callable[[], bool]
    ) -> None:
        self._token = token.hex()
        self._methods = methods
        self._has_room = has_room
        self._rejections = Rejections()

    def service(self, call: Any) -> Any:
        """Return the handler of a call."""
        presented = dict(call.invocation_metadata or ()).get(messages.TOKEN_KEY, "")
        if not hmac.compare_digest(str(presented).encode(), self._token.encode()):
            if not self._has_room():
                return None  # gRPC answers "no such method" itself, without a thread
            # A stream handler does not read the messages, so no message can be too large.
            return grpc.stream_stream_rpc_method_handler(self._denied)
        return self._methods.get(call.method)

    def _denied(self, _requests: Any, context: Any) -> Any:
        self._rejections.note("it has another token", _host(context.peer()))
        context.abort(grpc.StatusCode.UNAUTHENTICATED, "")
        return iter(())


M = TypeVar("M")


def unary(
    kind: type[M],
    method: Callable[[M], object],
    encode: Callable[[object], bytes] = messages.encode,
) -> Any:
    """Return the handler of a method with one answer."""

    def answered(content: bytes, context: Any) -> bytes:
        try:
            return encode(method(messages.decode(kind, content)))
        except RoseError as error:
            _abort_with(error, context)

    return grpc.unary_unary_rpc_method_handler(answered)


def streamed(kind: type[M], method: Callable[[M, Any], Iterator[object]]) -> Any:
    """Return the handler of a method with a stream of answers."""

    def answered(content: bytes, context: Any) -> Iterator[bytes]:
        try:
            yield from map(messages.encode, method(messages.decode(kind, content), context))
        except RoseError as error:
            _abort_with(error, context)

    return grpc.unary_stream_rpc_method_handler(answered)


def _abort_with(error: RoseError, context: Any) -> NoReturn:
    """End a call with an error of rose as a gRPC status."""
    codes = (code for kind, code in _CODES if isinstance(error, kind))
    context.abort(next(codes, grpc.StatusCode.INVALID_ARGUMENT), str(error))
    raise error  # never reached, because `abort` raises


def _host(peer: str) -> str:
    """Return the caller's host; the port changes each time."""
    return peer.rpartition(":")[0]


T = TypeVar("T")


class CallThreads(ThreadPool):
    """The thread pool for the calls of a gRPC server.

    Any thread may use it. The condition guards the number of calls.
    """

    def __init__(self, name: str, most: int) -> None:
        super().__init__(most, name)
        self._ending = threading.Condition()
        self.calls = 0  # running and waiting

    def submit(self, work: Callable[..., T], /, *arguments: Any) -> Future[T]:  # type: ignore[override]
        """Submit a call; arguments are positional only, as in gRPC's calls."""
        future = super().submit(work, *arguments)
        with self._ending:
            self.calls += 1
        future.add_done_callback(self._ended)
        return future

    def join(self, timeout_s: float) -> bool:
        """Refuse new calls, and wait for the running ones; return whether they ended in time."""
        self.shutdown(wait=False, cancel_futures=True)
        with self._ending:
            has_ended = self._ending.wait_for(lambda: self.calls == 0, timeout_s)
        if has_ended:
            self.shutdown()
        return has_ended

    def _ended(self, _call: Future[Any]) -> None:
        with self._ending:
            self.calls -= 1
            self._ending.notify_all()


# Time for running calls to end after a close, in seconds.
CLOSE_S: Final = 10.0


class TokenServer(Closing):
    """Opens its port in the constructor, and answers from `start` until it is closed.

    Callers that lack the token cannot displace callers that have it: while there are twice as many
    calls as threads, calls without the token are refused at once.

    Args:
        name: name of the server's threads.
        host: address of this machine.
        port: port; 0 for any free port.
        security: credentials that callers must present.
        service: gRPC service name.
        methods: handlers made by `unary` and `streamed`, by name.
        calls_max: calls served at a time, each by a thread; further calls wait.
        request_bytes_max: limit for a received message, in bytes.
        reply_bytes_max: limit for a sent message, in bytes.

    Raises:
        Unavailable: the port is taken.
        InvalidArgument: a certificate cannot be read.
    """

    def __init__(
        self,
        name: str,
        host: str,
        port: int,
        security: Security,
        service: str,
        *,
        methods: Mapping[str, Any],
        calls_max: int,
        request_bytes_max: int,
        reply_bytes_max: int,
    ) -> None:
        self._once = Once()
        self._threads = CallThreads(name, calls_max)
        named = {f"/{service}/{one}": handler for one, handler in methods.items()}
        room = 2 * calls_max
        self._grpc: Any = grpc.server(
            self._threads,
            handlers=(TokenMethods(security.token, named, lambda: self._threads.calls < room),),
            options=(
                ("grpc.max_receive_message_length", request_bytes_max),
                ("grpc.max_send_message_length", reply_bytes_max),
                ("grpc.so_reuseport", 0),  # a second server on a port must be an error
                ("grpc.http2.max_ping_strikes", 0),  # clients send pings, see `SILENCE_S`
            ),
            # gRPC counts a call for a moment after its end: room for two such calls per thread.
            maximum_concurrent_rpcs=room + 2 * calls_max,
        )
        with ExitStack() as undo:
            undo.callback(self.close)
            self.address: Final = spelled(host, add_port(self._grpc, host, port, security))
            undo.pop_all()

    def start(self) -> None:
        """Start to answer."""
        self._grpc.start()

    def close(self) -> None:
        """Break off all calls and join their threads, within `CLOSE_S`.

        A thread that takes longer is left, and its answer is dropped.
        """
        self._once(self._close)

    def _close(self) -> None:
        self._grpc.stop(None).wait()
        self._threads.join(CLOSE_S)
