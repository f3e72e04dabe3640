"""Methods of a gRPC server that answers nobody without the token, and errors as gRPC's codes."""

import hmac
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

import grpc

from rose.errors import OutOfMemory, RoseError, Unavailable
from rose.transfer.wire import messages
from rose.transfer.wire.security import Rejections

_CODES: Final = (
    (OutOfMemory, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (Unavailable, grpc.StatusCode.UNAVAILABLE),
)


class TokenMethods(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Finds the method of a call; without the token there is none to find.

    Args:
        token: that is shown.
        methods: handlers by the full names of the methods.
        has_room: whether there is room for a stranger, who is told what is wrong then.
    """

    def __init__(
        self, token: bytes, methods: Mapping[str, Any], has_room: Callable[[], bool]
    ) -> None:
        self._token = token.hex()
        self._methods = methods
        self._has_room = has_room
        self._rejections = Rejections()

    def service(self, call: Any) -> Any:
        """Return what answers a call."""
        presented = dict(call.invocation_metadata or ()).get(messages.TOKEN_KEY, "")
        if not hmac.compare_digest(str(presented).encode(), self._token.encode()):
            if not self._has_room():
                return None  # gRPC says that there is no such method: without a place or a thread
            # As a stream its messages are not even read, so that none can be too large.
            return grpc.stream_stream_rpc_method_handler(self._denied)
        return self._methods.get(call.method)

    def _denied(self, _requests: Any, context: Any) -> Any:
        self._rejections.note("it has another token", _host(context.peer()))
        context.abort(grpc.StatusCode.UNAUTHENTICATED, "")
        return iter(())


def abort_with(error: RoseError, context: Any) -> NoReturn:
    """End a call with an error of rose as gRPC says it."""
    codes = (code for kind, code in _CODES if isinstance(error, kind))
    context.abort(next(codes, grpc.StatusCode.INVALID_ARGUMENT), str(error))
    raise error  # abort has raised


def _host(peer: str) -> str:
    """Return who called, without the port, which is another one each time."""
    return peer.rpartition(":")[0]
