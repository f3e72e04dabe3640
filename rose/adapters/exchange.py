"""One request and its answer, in the plain terms of ASGI: for the routes where time matters."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any, Final

import msgspec

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

# Proxies close a connection on which nothing arrives for 60 s.
_KEEP_ALIVE_S: Final = 15.0
_COMMENT: Final = b": keep-alive\n\n"
_DONE: Final = b"data: [DONE]\n\n"
_JSON: Final = (b"content-type", b"application/json")
_EVENTS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx passes each event on at once
]
_encode = msgspec.json.Encoder().encode


def header(scope: Scope, name: bytes) -> bytes:
    """Return a header of a request; empty if it is missing."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value)
    return b""


class Exchange:
    """A request whose body has arrived, and the answer to it.

    Args:
        scope: the request.
        body: its body.
        receive: function that waits until the client disconnects.
        send: function that sends a part of the answer.
    """

    def __init__(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        self.scope, self.body = scope, body
        self._receive, self._send = receive, send
        self.is_started = False  # whether the status is sent
        self.is_gone = False  # whether the client has disconnected
        self._sent_at = 0.0
        self._timer: asyncio.TimerHandle
        self._comment: asyncio.Future[None]  # kept, so that it is not collected before its end

    def header(self, name: bytes) -> str:
        """Return a header; empty if it is missing."""
        return header(self.scope, name).decode("latin-1")

    async def answer(self, body: Any, status: int = 200, **headers: str) -> None:
        """Send a whole answer; underscores in names of headers stand for hyphens."""
        data = body if isinstance(body, bytes) else _encode(body)
        pairs = [_JSON, (b"content-length", b"%d" % len(data))]
        pairs += [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()]
        self.is_started = True
        await self._send({"type": "http.response.start", "status": status, "headers": pairs})
        await self._send({"type": "http.response.body", "body": data})

    async def stream(self, parts: AsyncIterator[bytes]) -> None:
        """Send parts as they come, as server-sent events."""
        loop = asyncio.get_running_loop()
        self.is_started = True
        await self._send({"type": "http.response.start", "status": 200, "headers": _EVENTS})
        self._sent_at = loop.time()
        self._timer = loop.call_later(_KEEP_ALIVE_S, self._keep_alive)
        try:
            async for part in parts:
                self._sent_at = loop.time()
                await self._send({"type": "http.response.body", "body": part, "more_body": True})
        finally:
            self._timer.cancel()
        await self._send({"type": "http.response.body", "body": _DONE})

    async def watch(self, leave: Callable[[], object]) -> None:
        """Call `leave` once the client disconnects."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.is_gone = True
        leave()

    def _keep_alive(self) -> None:
        """Send a comment, which clients ignore, if nothing was sent for long."""
        loop = asyncio.get_running_loop()
        quiet_s = loop.time() - self._sent_at
        if quiet_s >= _KEEP_ALIVE_S:
            self._sent_at, quiet_s = loop.time(), 0.0
            comment = {"type": "http.response.body", "body": _COMMENT, "more_body": True}
            self._comment = asyncio.ensure_future(self._send(comment))
        self._timer = loop.call_later(_KEEP_ALIVE_S - quiet_s, self._keep_alive)
