"""A client of the rollout service that waits while the service or its workers are away."""

import asyncio
import json
import logging
import ssl
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from ipaddress import ip_address
from itertools import count
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import aiohttp

from rose.clock import BootClock
from rose.errors import InvalidArgument, Unavailable, sentence
from rose.units import NS_PER_S

_logger: Final = logging.getLogger(__name__)

# What a user can do about each status after which a request is repeated.
_REMEDIES: Final = {
    409: "check that workers receive the published weights: `rose workers list` has their versions",
    429: "generate fewer completions at a time, or raise the service's limit",
    502: "start the service behind the proxy",
    503: "add a worker: `rose workers add URL`",
}
_NO_ANSWER: Final = "start the service, or correct its URL"
_CONNECT_S: Final = 10.0
_ANSWER_S: Final = 3660.0  # the service itself ends a request after an hour
_CONNECTIONS: Final = 512  # below the usual limit of 1,024 open files
_PAUSE_S, _PAUSE_MAX_S, _DOUBLINGS = 0.1, 2.0, 5
_REPORT_S: Final = 10.0
_SHOWN: Final = 300  # characters of an answer that is no JSON

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, also below a running event loop, as in a notebook."""
    if not _is_in_loop():
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


def _is_in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class RolloutClient:
    """Sends requests to a rollout service, and repeats those that fail only for a time.

    Statuses 409, 429, 502 and 503 and broken connections are waited for. Proxies of the environment
    are used, but not for a service on loopback.

    Args:
        url: URL of the rollout service.
        token: bearer token of the service; None: the service needs no token.
        ca: PEM file of the authority that signed the service's certificate; None: those of the
            system.
        wait_s: longest time in seconds that one request waits between its attempts.

    Raises:
        InvalidArgument: the URL is malformed, or `ca` cannot be used.
    """

    def __init__(
        self, url: str, *, token: str | None, ca: str | Path | None, wait_s: float
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise InvalidArgument(
                f"url must start with http:// or https:// and have a host, got '{url}'"
            )
        self.url, self.wait_s = url.rstrip("/"), wait_s
        self._is_local = _is_loopback(parts.hostname)
        self._headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self._tls: ssl.SSLContext | bool = True
        if ca is not None:
            try:
                self._tls = ssl.create_default_context(cafile=ca)
            except OSError as error:  # SSLError too
                raise InvalidArgument(
                    f"ca must be a PEM file with certificates: '{ca}': {error}"
                ) from error
        self._clock = BootClock()
        self._reported_ns = 0

    def call(self, method: str, path: str, body: Any = None, *, wait_s: float | None = None) -> Any:
        """Send one request and return its answer; see `RolloutSession.call`."""

        async def work() -> Any:
            async with self.session() as session:
                return await session.call(method, path, body, wait_s=wait_s)

        return run(work())

    @asynccontextmanager
    async def session(self) -> AsyncIterator["RolloutSession"]:
        """Open connections that requests share."""
        async with aiohttp.ClientSession(
            headers=self._headers,
            connector=aiohttp.TCPConnector(limit=_CONNECTIONS, ssl=self._tls),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=_ANSWER_S),
            trust_env=not self._is_local,
        ) as http:
            yield RolloutSession(self, http)

    def report(self, waited_s: float, reason: str, remedy: str) -> None:
        """Log a wait that has become long; of the waits of many requests, one is logged."""
        now_ns = self._clock.now_ns()
        if waited_s >= _REPORT_S and now_ns - self._reported_ns >= _REPORT_S * NS_PER_S:
            self._reported_ns = now_ns
            _logger.warning("waited %.0f s: %s; %s", waited_s, reason, remedy)


class RolloutSession:
    """Requests over shared connections."""

    def __init__(self, client: RolloutClient, http: aiohttp.ClientSession) -> None:
        self._client, self._http = client, http

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: dict[str, str] | None = None,
        wait_s: float | None = None,
    ) -> Any:
        """Send a request until it is answered, and return the JSON of the answer.

        Args:
            method: method of HTTP.
            path: path, and query.
            body: JSON of the request.
            headers: further headers. With `idempotency-key` the service answers a repeated request
                from the first, if that one has survived.
            wait_s: longest time to wait between attempts; None: that of the client.

        Raises:
            InvalidArgument: the service refuses the request.
            Unavailable: the service failed, or did not become able to answer in time.
        """
        limit_s, waited_s = self._client.wait_s if wait_s is None else wait_s, 0.0
        loop = asyncio.get_running_loop()
        for attempt in count():
            began_s = loop.time()
            try:
                return await self._once(method, path, body, headers)
            except _Temporary as error:
                # A turn may have run for an hour before its connection broke. That is no wait.
                waited_s += min(loop.time() - began_s, _CONNECT_S)
                if waited_s >= limit_s:
                    raise Unavailable(f"{error} within {limit_s:g} s; {error.remedy}") from error
                self._client.report(waited_s, str(error), error.remedy)
                doubled_s = min(_PAUSE_S * 2 ** min(attempt, _DOUBLINGS), _PAUSE_MAX_S)
                pause_s = min(max(error.retry_s, doubled_s), max(limit_s - waited_s, 0.0))
                await asyncio.sleep(pause_s)
                waited_s += pause_s

        raise AssertionError("count() does not end")

    async def _once(self, method: str, path: str, body: Any, headers: dict[str, str] | None) -> Any:
        url = self._client.url + path
        where = f"the rollout service at {self._client.url}"
        try:
            async with self._http.request(method, url, json=body, headers=headers) as answer:
                content = await answer.read()
        except aiohttp.ClientSSLError as error:
            raise Unavailable(
                f"{where} has no certificate that is trusted here: {error}; pass its authority as "
                f"ca="
            ) from error
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            raise _Temporary(f"{where} did not answer ({sentence(error)})", _NO_ANSWER) from error
        said = _json(content)
        if answer.ok and said is not None:
            return said
        reason = f"{where} answered {method} {path.partition('?')[0]} with status {answer.status}"
        reason += f": {_message(said, content)}"
        if answer.status in _REMEDIES:
            retry_s = _seconds(answer.headers.get("retry-after"))
            raise _Temporary(reason, _REMEDIES[answer.status], retry_s)
        is_ours = 400 <= answer.status < 500
        raise (InvalidArgument if is_ours else Unavailable)(reason)


class _Temporary(Unavailable):
    """A failure after which the request is repeated."""

    def __init__(self, message: str, remedy: str, retry_s: float = 0.0) -> None:
        super().__init__(message)
        self.remedy, self.retry_s = remedy, retry_s


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _json(content: bytes) -> Any:
    """Return the answer's JSON; None if it is none."""
    try:
        return json.loads(content)
    except ValueError:
        return None


def _message(said: Any, content: bytes) -> str:
    """Return the sentence of an error."""
    error = said.get("error", said) if isinstance(said, dict) else said
    found = error.get("message") if isinstance(error, dict) else error
    if isinstance(found, str):
        return found
    return " ".join(content.decode(errors="replace").split())[:_SHOWN]


def _seconds(text: str | None) -> float:
    """Return the seconds of `Retry-After`, which may be a date too."""
    return float(text) if text is not None and text.isdecimal() else 0.0
