"""Fetch a page of metrics from an engine over HTTP."""

import http.client
from contextlib import closing
from typing import Final
from urllib.parse import SplitResult, urlsplit

from rose.clock import Clock
from rose.errors import InvalidArgument, Unavailable
from rose.units import MIB, NS_PER_S

# Engines answer within milliseconds; an engine that takes seconds has stalled.
TIMEOUT_S: Final = 2.0
_BODY_BYTES_MAX: Final = 4 * MIB  # Engines send some 100 KiB.
_CHUNK_BYTES: Final = 1 << 16
_PATH: Final = "/metrics"
_CONNECTIONS: Final = {
    "http": http.client.HTTPConnection,
    "https": http.client.HTTPSConnection,
}


def endpoint_of(url: str) -> SplitResult:
    """Parse a URL, and add the path `/metrics` if it has none.

    Raises:
        InvalidArgument: `url` is not an HTTP or HTTPS URL.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port  # urlsplit checks the port only on access.
    except ValueError as error:
        raise InvalidArgument(f"'{url}' is not a URL: {error}") from None
    if (
        parts.scheme not in _CONNECTIONS
        or not parts.hostname
        or parts.username is not None
        or not (url.isascii() and url.isprintable() and " " not in url)
    ):
        raise InvalidArgument(f"'{url}' must be a URL such as http://localhost:8000/metrics")
    return parts._replace(path=_PATH) if parts.path in {"", "/"} else parts


def fetch_text(endpoint: SplitResult, clock: Clock) -> str:
    """Fetch the page, without proxy or redirects.

    Reading the body ends within `TIMEOUT_S`. Each earlier step (name lookup, connection, TLS,
    headers) has a timeout of its own, of the same length.

    Raises:
        Unavailable: the engine does not answer, or the page is too long or not text.
    """
    url = endpoint.geturl()
    connect = _CONNECTIONS[endpoint.scheme]
    with closing(connect(endpoint.hostname or "", endpoint.port, timeout=TIMEOUT_S)) as connection:
        try:
            return _page(connection, endpoint, clock)
        except TimeoutError:
            raise Unavailable(f"{url} did not answer within {TIMEOUT_S:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise Unavailable(f"{url} does not answer: {why}") from None
        except UnicodeDecodeError:
            raise Unavailable(f"{url} answers with bytes that are not text") from None


def _page(connection: http.client.HTTPConnection, endpoint: SplitResult, clock: Clock) -> str:
    url = endpoint.geturl()
    headers = {"Accept": "text/plain", "Accept-Encoding": "identity", "User-Agent": "rose"}
    path = f"{endpoint.path}?{endpoint.query}" if endpoint.query else endpoint.path
    ends_ns = clock.now_ns() + round(TIMEOUT_S * NS_PER_S)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    if answer.status != http.HTTPStatus.OK:
        raise Unavailable(f"{url} answers with status {answer.status}")
    body = bytearray()
    while chunk := answer.read1(_CHUNK_BYTES):
        body += chunk
        if len(body) > _BODY_BYTES_MAX:
            raise Unavailable(
                f"{url} sends more than {_BODY_BYTES_MAX // MIB} MiB, which is not a metrics page"
            )
        if clock.now_ns() > ends_ns:  # The socket's own timeout restarts with each byte.
            raise TimeoutError
    return body.decode()
