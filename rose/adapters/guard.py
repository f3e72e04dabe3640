"""Checks before every route: the bearer token, and the size and arrival time of the body."""

import asyncio
import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from rose.adapters.json_answer import Json
from rose.adapters.limits import Overloaded
from rose.adapters.pauses import PauseOvertaken
from rose.adapters.service import RolloutService
from rose.errors import DeadlineExceeded, InternalError, InvalidArgument, RoseError
from rose.scheduler.coerce import printable
from rose.scheduler.versions import VersionConflict

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

RETRY_AFTER_S: Final = 1
# Health checks carry no token.
_OPEN_PATHS: Final = frozenset({"/health", "/ping"})
# Open requests allowed for each sequence in `ServiceLimits.sequences`. More than one, because a
# request that will be refused is also open for a moment.
_REQUESTS_PER_SEQUENCE: Final = 2
_KINDS: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    409: "version_conflict",
    413: "invalid_request_error",
    429: "rate_limit_error",
}


def status_of(error: RoseError) -> int:
    """Return the HTTP status of an error."""
    match error:
        case InvalidArgument():
            return 400
        case VersionConflict() | PauseOvertaken():
            return 409
        case Overloaded():
            return 429
        case DeadlineExceeded():
            return 504
        case InternalError():
            return 500
    return 503


def error_body(status: int, message: str, there: dict[int, int] | None = None) -> dict[str, Any]:
    """Return the body of an error in the format of OpenAI.

    Args:
        status: HTTP status.
        message: one sentence for the user.
        there: number of workers by version of their weights, if the error is about versions.
    """
    kind = _KINDS.get(status, "invalid_request_error" if status < 500 else "server_error")
    error: dict[str, Any] = {
        "message": printable("message", message),
        "type": kind,
        "param": None,
        "code": status,
    }
    if there is not None:
        error["versions"] = {str(version): count for version, count in there.items()}
    return {"error": error}


def headers_of(status: int) -> dict[str, str]:
    """Return the headers that an error needs besides the usual ones."""
    if status in {409, 429, 503}:
        return {"retry-after": str(RETRY_AFTER_S)}
    return {"www-authenticate": "Bearer"} if status == 401 else {}


class _Refused(Exception):
    """The refusal of a request before it reaches a route."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Guard:
    """ASGI application that checks each request and then passes it on, with its body read.

    Args:
        app: application that receives the accepted requests.
        service: service whose limits apply.
        token: bearer token that clients must send; None: no token is needed.
    """

    def __init__(self, app: App, *, service: RolloutService, token: str | None) -> None:
        self._app = app
        self._limits = service.limits
        self._token = None if token is None else token.encode()
        self._requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to the application, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        self._requests += 1
        try:
            self._check(scope)
            body = await self._body(scope, receive)
        except _Refused as refused:
            # A refused body is not read to its end, so the connection cannot be used again.
            headers = {"connection": "close", **headers_of(refused.status)}
            answer = Json(error_body(refused.status, str(refused)), refused.status, headers)
            await answer(scope, receive, send)
        else:
            if body is not None:
                await self._app(scope, _replayed(body, receive), send)
        finally:
            self._requests -= 1

    def _check(self, scope: Scope) -> None:
        # Readers that disagree about which of the two applies see different requests.
        if _header(scope, b"transfer-encoding") and _header(scope, b"content-length"):
            raise _Refused(400, "a request must not have both Content-Length and Transfer-Encoding")
        if scope["path"] in _OPEN_PATHS:
            return
        if self._token is not None:
            shown = _header(scope, b"authorization").split(b" ", 1)
            is_bearer = len(shown) == 2 and shown[0].lower() == b"bearer"
            if not is_bearer or not hmac.compare_digest(shown[1].strip(), self._token):
                raise _Refused(401, "the request must carry the service's bearer token")
        most = _REQUESTS_PER_SEQUENCE * self._limits.sequences
        if self._requests > most:
            raise _Refused(
                429, f"at most {most} requests may be open, got {self._requests}: retry later"
            )

    async def _body(self, scope: Scope, receive: Receive) -> bytes | None:
        """Return the body; None if the client has disconnected."""
        most = self._limits.body_bytes
        length = _header(scope, b"content-length")
        if length.isdigit() and int(length[:20]) > most:
            raise _Refused(413, f"a body must have at most {most} bytes, got {length.decode()}")
        try:
            return await asyncio.wait_for(_read(receive, most), self._limits.body_s)
        except asyncio.TimeoutError:
            raise _Refused(408, f"the body must arrive within {self._limits.body_s} s") from None


def _header(scope: Scope, name: bytes) -> bytes:
    return next((bytes(value) for key, value in scope["headers"] if key == name), b"")


async def _read(receive: Receive, most: int) -> bytes | None:
    parts, count = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        count += len(parts[-1])
        if count > most:
            raise _Refused(413, f"a body must have at most {most} bytes, got {count} and more")
        if not message.get("more_body", False):
            return b"".join(parts)


def _replayed(body: bytes, receive: Receive) -> Receive:
    is_read = False

    async def again() -> Message:
        nonlocal is_read
        if is_read:
            return await receive()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again
