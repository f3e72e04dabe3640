"""The weight server: versions for receivers in other processes, and on other machines with TLS."""

import hmac
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import grpc

from rose.addresses import spelled
from rose.closing import Closing
from rose.errors import OutOfMemory, RoseError, Unavailable
from rose.transfer.relaying.upstream import Upstream
from rose.transfer.wire import grpc_chunks, messages
from rose.transfer.wire.chunk_server import ChunkServer
from rose.transfer.wire.credentials import add_port
from rose.transfer.wire.peers import Peers
from rose.transfer.wire.security import Rejections, Security, TlsFiles

WAIT_MAX_S: Final = 10.0
# Each receiver that waits takes a thread.
RECEIVERS_MAX: Final = 32
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", messages.REQUEST_BYTES_MAX),
    ("grpc.max_send_message_length", messages.REPLY_BYTES_MAX),
    ("grpc.so_reuseport", 0),  # a second server on a port is an error, not a lottery
)
_CODES: Final = (
    (OutOfMemory, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (Unavailable, grpc.StatusCode.UNAVAILABLE),
)


class WeightServer(Closing):
    """Serves one log until it is closed: control by gRPC, chunks by TCP.

    Made by `serve`. Who does not present the token learns nothing on either.
    """

    def __init__(
        self, log: Upstream, host: str, port: int, security: Security, peers: Peers
    ) -> None:
        self._log = log
        self._security = security
        self._peers = peers
        self._is_closing = threading.Event()
        self._pool = ThreadPoolExecutor(RECEIVERS_MAX, "rose-weights")
        self._grpc: Any = grpc.server(
            self._pool,
            options=_OPTIONS,
            maximum_concurrent_rpcs=2 * RECEIVERS_MAX,
        )
        self._grpc.add_generic_rpc_handlers((_Methods(security.token, self._methods()),))
        try:
            bound = add_port(self._grpc, host, port, security)
            self._chunks = ChunkServer(log, security.token, host, tls=security.tls)
        except RoseError:
            self._grpc.stop(None).wait()
            self._pool.shutdown()
            raise
        self.address: str = spelled(host, bound)
        self._grpc.start()

    @property
    def token(self) -> str:
        """Return what receivers must present, in hexadecimal digits."""
        return self._security.token.hex()

    @property
    def peers(self) -> Peers:
        """Return who serves and who subscribed."""
        return self._peers

    def close(self) -> None:
        """Break off all calls and join all threads; the log stays as it is."""
        self._is_closing.set()
        self._log.wake()
        self._grpc.stop(None).wait()
        self._pool.shutdown()
        self._chunks.close()

    def _methods(self) -> dict[str, Any]:
        each: dict[str, Callable[[bytes], object]] = {
            "Hello": self._hello,
            "Wait": self._wait,
            "Seed": self._seed,
            "Subscribe": self._subscribe,
            "Report": self._report,
        }
        methods = {
            f"/{messages.SERVICE}/{name}": grpc.unary_unary_rpc_method_handler(_answered(method))
            for name, method in each.items()
        }
        return {**methods, grpc_chunks.METHOD: grpc_chunks.chunks_handler(self._log)}

    def _hello(self, content: bytes) -> messages.HelloReply:
        messages.decode(messages.HelloRequest, content)
        return self._peers.hello(self._chunks.port)

    def _wait(self, content: bytes) -> messages.ManifestsReply:
        request = messages.decode(messages.WaitRequest, content)
        manifests = self._log.wait_after(
            request.after_n,
            min(max(request.timeout_ms / 1000, 0.0), WAIT_MAX_S),
            is_over=self._is_closing.is_set,
        )
        return messages.ManifestsReply(tuple(manifests), self._chunks.port)

    def _seed(self, content: bytes) -> messages.ManifestsReply:
        request = messages.decode(messages.SeedRequest, content)
        seed = self._log.seed(request.n, request.tiles)
        return messages.ManifestsReply(() if seed is None else (seed,), self._chunks.port)

    def _subscribe(self, content: bytes) -> messages.SubscribeReply:
        self._peers.subscribe(messages.decode(messages.SubscribeRequest, content))
        return messages.SubscribeReply()

    def _report(self, content: bytes) -> messages.ReportReply:
        request = messages.decode(messages.ReportRequest, content)
        self._log.acknowledge(
            request.receiver, request.n, is_match=request.is_match, digest=request.digest
        )
        return messages.ReportReply()


class _Methods(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Finds the method of a call; without the token there is none to find."""

    def __init__(self, token: bytes, methods: dict[str, Any]) -> None:
        self._token = token.hex()
        self._methods = methods
        self._rejections = Rejections()

    def service(self, call: Any) -> Any:
        """Return what answers a call."""
        presented = dict(call.invocation_metadata or ()).get(messages.TOKEN_KEY, "")
        if not hmac.compare_digest(str(presented).encode(), self._token.encode()):
            # As a stream its messages are not even read, so that none can be too large.
            return grpc.stream_stream_rpc_method_handler(self._denied)
        return self._methods.get(call.method)

    def _denied(self, _requests: Any, context: Any) -> Any:
        self._rejections.note("it has another token", _host(context.peer()))
        context.abort(grpc.StatusCode.UNAUTHENTICATED, "")
        return iter(())


def _host(peer: str) -> str:
    """Return who called, without the port, which is another one each time."""
    return peer.rpartition(":")[0]


def _answered(method: Callable[[bytes], object]) -> Callable[[bytes, Any], bytes]:
    """Return a method as gRPC calls it: bytes in and out, and errors of rose as its codes."""

    def call(content: bytes, context: Any) -> bytes:
        try:
            return messages.encode(method(content))
        except RoseError as error:
            codes = (code for kind, code in _CODES if isinstance(error, kind))
            context.abort(next(codes, grpc.StatusCode.INVALID_ARGUMENT), str(error))
        return b""

    return call


def serve(
    log: Upstream,
    address: str = "127.0.0.1:0",
    *,
    token: str | None = None,
    tls: TlsFiles | None = None,
    peers: Peers | None = None,
) -> WeightServer:
    """Serve a log.

    Args:
        log: the publisher's, or what a relay keeps.
        address: on loopback, or of any machine with `tls`; port 0 for any that is free.
        token: 64 hexadecimal digits; None makes a new one. A parent that starts a trainer again
            passes the old port and token, so that receivers find it.
        tls: certificates that both sides show.
        peers: who serves, for those who ask.

    Raises:
        InvalidArgument: the address is not on loopback and there is no `tls`, the token is none, or
            a certificate is no use.
        Unavailable: the port is taken.
    """
    security = Security.of(token, tls)
    host, port = security.place(address)
    return WeightServer(log, host, port, security, Peers() if peers is None else peers)
