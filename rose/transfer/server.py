"""The weight server: a log of versions for receivers in other processes of this machine."""

import hmac
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Final

import grpc
from typing_extensions import Self

from rose.addresses import loopback
from rose.errors import InvalidArgument, OutOfMemory, RoseError, Unavailable
from rose.transfer import grpc_chunks, messages
from rose.transfer.chunk_plane import TOKEN_BYTES
from rose.transfer.chunk_server import ChunkServer
from rose.transfer.log import VersionLog

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


class WeightServer:
    """Serves one log on loopback until it is closed: control by gRPC, chunks by TCP.

    Made by `serve`. Who does not present the token learns nothing on either.
    """

    def __init__(self, log: VersionLog, host: str, port: int, token: bytes) -> None:
        self._log = log
        self._token = token
        self._is_closing = threading.Event()
        self._pool = ThreadPoolExecutor(RECEIVERS_MAX, "rose-weights")
        self._grpc: Any = grpc.server(
            self._pool,
            options=_OPTIONS,
            maximum_concurrent_rpcs=2 * RECEIVERS_MAX,
        )
        self._grpc.add_generic_rpc_handlers((_Methods(token, self._methods()),))
        host_text = f"[{host}]" if ":" in host else host
        try:
            bound = self._grpc.add_insecure_port(f"{host_text}:{port}")
        except RuntimeError as error:
            self._pool.shutdown()
            raise Unavailable(f"port {port} of {host} cannot be listened on: {error}") from error
        self.address: str = f"{host_text}:{bound}"
        self._chunks = ChunkServer(log, token, host)
        self._grpc.start()

    @property
    def token(self) -> str:
        """Return what receivers must present, in hexadecimal digits."""
        return self._token.hex()

    def close(self) -> None:
        """Break off all calls and join all threads; the log stays as it is."""
        self._is_closing.set()
        self._log.wake()
        self._grpc.stop(None).wait()
        self._pool.shutdown()
        self._chunks.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _methods(self) -> dict[str, Any]:
        each: dict[str, Callable[[bytes], object]] = {
            "Wait": self._wait,
            "Seed": self._seed,
            "Report": self._report,
        }
        methods = {
            f"/{messages.SERVICE}/{name}": grpc.unary_unary_rpc_method_handler(_answered(method))
            for name, method in each.items()
        }
        return {**methods, grpc_chunks.METHOD: grpc_chunks.chunks_handler(self._log)}

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

    def service(self, call: Any) -> Any:
        """Return what answers a call."""
        presented = dict(call.invocation_metadata or ()).get(messages.TOKEN_KEY, "")
        if not hmac.compare_digest(str(presented).encode(), self._token.encode()):
            return grpc.unary_unary_rpc_method_handler(_denied)
        return self._methods.get(call.method)


def _denied(_request: bytes, context: Any) -> bytes:
    context.abort(grpc.StatusCode.UNAUTHENTICATED, "")
    return b""


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
    log: VersionLog, address: str = "127.0.0.1:0", *, token: str | None = None
) -> WeightServer:
    """Serve a log.

    Args:
        log: the publisher's.
        address: on loopback; port 0 for any that is free.
        token: 64 hexadecimal digits; None makes a new one. A parent that starts a trainer again
            passes the old port and token, so that receivers find it.

    Raises:
        InvalidArgument: the address is not on loopback, or the token is none.
        Unavailable: the port is taken.
    """
    host, port = loopback(address)
    return WeightServer(log, host, port, token_bytes(token))


def token_bytes(token: str | None) -> bytes:
    """Return a token as bytes, or a new one."""
    if token is None:
        return secrets.token_bytes(TOKEN_BYTES)
    try:
        content = bytes.fromhex(token)
    except ValueError:
        content = b""
    if len(content) != TOKEN_BYTES:
        raise InvalidArgument(f"a token is {2 * TOKEN_BYTES} hexadecimal digits")
    return content
