"""The connection to one engine's HTTP routes."""

import asyncio
import ssl
from collections.abc import Coroutine
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec

from rose.errors import DeadlineExceeded, InvalidArgument, Unavailable, sentence

# Below uvicorn's limit of 5 s for idle connections, so that the client closes an idle one first.
KEEP_ALIVE_S: Final = 4.0
CONNECT_S: Final = 3.0
_SHOWN_BYTES: Final = 600
_TURN: Final = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S)

T = TypeVar("T")
Pending: TypeAlias = "aiohttp.client._RequestContextManager"


class Disconnected(Unavailable):
    """Nobody accepts connections at the engine's address."""


class BadStatus(Unavailable):
    """The engine answered with an HTTP status other than 200."""

    def __init__(self, status: int, message: str) -> None:
        """Store the status beside the engine's sentence."""
        super().__init__(message)
        self.status = status


def open_session() -> aiohttp.ClientSession:
    """Return a session for any number of engines and streams; proxies are ignored."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S)
    return aiohttp.ClientSession(connector=connector, trust_env=False, timeout=_TURN)


@dataclass(frozen=True, slots=True)
class Link:
    """Address and secrets of an engine.

    Args:
        session: session that all engines share.
        url: http or https URL, without a path's last slash.
        token: bearer token; None: the engine needs none.
        tls: context for https; None: the system's authorities.
    """

    session: aiohttp.ClientSession
    url: str
    token: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = None

    def post(self, path: str, body: bytes) -> Pending:
        """Begin a request without a time limit, for `async with`."""
        headers = {"content-type": "application/json", **self._headers()}
        return self.session.post(
            self.url + path, data=body, headers=headers, ssl=self.tls or True, timeout=_TURN
        )

    def get(self, path: str, *, silence_s: float | None = None) -> Pending:
        """Begin a streamed answer, for `async with`.

        Args:
            path: path and query of the route.
            silence_s: longest time between two pieces of the answer; None: no limit.
        """
        limit = aiohttp.ClientTimeout(sock_connect=CONNECT_S, sock_read=silence_s)
        return self.session.get(
            self.url + path, headers=self._headers(), ssl=self.tls or True, timeout=limit
        )

    async def ask(self, path: str, body: Any = None, *, deadline_s: float) -> bytes:
        """Return the body of an answer with status 200.

        Args:
            path: path and query of the route.
            body: value of a POST request's JSON body; None: a GET request.
            deadline_s: longest time for the whole answer.

        Raises:
            Disconnected: the connection was refused.
            BadStatus: the status is another one.
            DeadlineExceeded: the answer did not arrive in time.
            Unavailable: the connection failed in another way.
        """
        try:
            return await within(deadline_s, self._ask(path, body))
        except asyncio.TimeoutError:
            raise DeadlineExceeded(
                f"{self.url}{path} did not answer within {deadline_s} s"
            ) from None
        except (aiohttp.ClientError, OSError) as error:
            raise failure_of(self.url, error) from error

    async def _ask(self, path: str, body: Any) -> bytes:
        sent = self.get(path) if body is None else self.post(path, msgspec.json.encode(body))
        async with sent as answer:
            data = await answer.read()
            if answer.status != 200:
                raise BadStatus(answer.status, message_of(answer.status, data))
            return data

    def _headers(self) -> dict[str, str]:
        return {} if self.token is None else {"authorization": f"Bearer {self.token}"}


async def within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of work, which is cancelled after `seconds`.

    Before Python 3.12, `asyncio.wait_for` may swallow the cancellation of its caller.

    Raises:
        asyncio.TimeoutError: the work took longer.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=seconds)
        if not task.done():
            raise asyncio.TimeoutError
    finally:
        task.cancel()
    return task.result()


def failure_of(url: str, error: Exception) -> Unavailable:
    """Return the error for a connection that could not be made, or broke."""
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(cause, ConnectionRefusedError):
        return Disconnected(f"{url} refuses connections")
    return Unavailable(f"the connection to {url} failed: {sentence(error)}")


def message_of(status: int, data: bytes) -> str:
    """Return the sentence of an engine's error body, in any of the formats that engines use."""
    try:
        found = msgspec.json.decode(data)
    except msgspec.DecodeError:
        found = data[:_SHOWN_BYTES].decode(errors="replace")
    for key in ("error", "message", "detail"):
        if isinstance(found, dict):
            found = found.get(key, found)
    text = found if isinstance(found, str) else msgspec.json.encode(found).decode()
    return f"the engine answered {status}: {text.strip()[:_SHOWN_BYTES] or 'no reason given'}"


def checked_url(url: str, *, has_token: bool) -> str:
    """Return an engine's URL without its last slash.

    Raises:
        InvalidArgument: it is no http or https URL, it contains a user, query or fragment, or a
            token would leave this machine unencrypted.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidArgument(f"the URL of an engine is invalid: {error}, got '{url}'") from error
    extra = parts.username or parts.password or parts.query or parts.fragment
    is_plain = url.isascii() and url.isprintable() and " " not in url
    if parts.scheme not in ("http", "https") or not host or port == 0 or extra or not is_plain:
        raise InvalidArgument(
            f"the URL of an engine must be like http://127.0.0.1:8000, http or https, got '{url}'"
        )
    if has_token and parts.scheme == "http" and not _is_loopback(host):
        raise InvalidArgument(f"a token may leave this machine over https only, got '{url}'")
    return url.rstrip("/")


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
