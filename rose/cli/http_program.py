"""What `rose serve` and `rose engine` share: their HTTP server, its secrets, and their end."""

import asyncio
import signal
import ssl
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import click

from rose.adapters import RolloutService
from rose.adapters.http_errors import error_body, headers_of
from rose.adapters.json_answer import Json
from rose.adapters.listening import Tls, listening
from rose.cli.runs import read_named
from rose.errors import InvalidArgument

PATH: Final = click.Path(path_type=Path)
_TOKEN_BYTES_MAX: Final = 1 << 10
CLOSING: Final = "this program is shutting down"
_TOKENIZER_FILES: Final = ("tokenizer.json", "tokenizer_config.json")
_LOST: Final = 1  # exit status of a program whose engine was lost


@dataclass(frozen=True, slots=True)
class Door:
    """Where a program listens, and whom it admits.

    Args:
        address: HOST:PORT.
        tls: PEM files; None: only this machine is admitted.
        token: bearer token of clients; None: clients need none.

    Raises:
        InvalidArgument: other machines would be admitted without a token or a certificate.
    """

    address: str
    tls: Tls | None
    token: str | None = field(repr=False)

    def __post_init__(self) -> None:
        if self.tls is not None and len(self.tls) < 3 and self.token is None:
            raise InvalidArgument(
                "--tls lets other machines in, so ROSE_TOKEN must be set, or --tls-ca must name "
                "the authority of the clients' certificates"
            )


def with_ca(tls: tuple[Path, Path] | None, authority: Path | None) -> Tls | None:
    """Return the files of the options --tls and --tls-ca.

    Raises:
        InvalidArgument: there is an authority, but no certificate.
    """
    if authority is None:
        return tls
    if tls is None:
        raise InvalidArgument("--tls-ca needs --tls, with the certificate of this server")
    return (*tls, authority)


def read_token(path: Path) -> str:
    """Return the token in a file, without white space around it.

    Raises:
        InvalidArgument: the file cannot be read, or has no token in ASCII letters.
    """
    text = read_named(path, _TOKEN_BYTES_MAX).decode(errors="replace").strip()
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise InvalidArgument(f"{path} must hold one token, in printable ASCII without spaces")
    return text


def has_tokenizer(folder: Path) -> bool:
    """Return whether a folder is a model's, with a tokenizer."""
    return any((folder / name).is_file() for name in _TOKENIZER_FILES)


def trusting(authority: Path) -> ssl.SSLContext:
    """Return a client's context that trusts one authority only.

    Raises:
        InvalidArgument: the file cannot be used.
    """
    try:
        return ssl.create_default_context(cafile=str(authority))
    except OSError as error:  # The errors of the ssl module are of this class too.
        raise InvalidArgument(
            f"{authority} must hold certificates of an authority: {error.strerror or error}"
        ) from error


App = Callable[..., Awaitable[None]]
Join = Callable[[AsyncExitStack, Callable[[str], None]], Awaitable[App]]


class _Front:
    """ASGI application that answers 503 until there is an application to pass requests to."""

    def __init__(self) -> None:
        self.app: App | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self.app is not None:
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await Json(error_body(503, "this program is starting"), 503, headers_of(503))(
                scope, receive, send
            )


async def serve_until_told(
    service: RolloutService,
    door: Door,
    join: Join,
    *,
    words: Callable[[], str] = str,
    programs: AbstractAsyncContextManager[object] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, then end running requests within seconds.

    The server closes last: requests that still run get their answer, a 503 or an event, first.

    Args:
        service: service of the application, not open yet.
        door: where to listen, and the token.
        join: registers the workers of the open service, and returns the application. Its stack
            closes before the service; its function ends the program with a reason, and may be
            called in any thread.
        words: returns more words for the line that is printed when requests can come.
        programs: programs that end after the service is closed.

    Raises:
        click.exceptions.Exit: the program ended by itself.
    """
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    reasons: list[str] = []
    front = _Front()

    def end(reason: str) -> None:
        reasons.append(reason)
        loop.call_soon_threadsafe(stop.set)

    with ExitStack() as handlers:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
            # uvloop leaves a handler behind that ignores the signal.
            handlers.callback(loop.remove_signal_handler, number)
        async with (
            listening(front, door.address, tls=door.tls) as url,
            programs or nullcontext(),
            service,
            AsyncExitStack() as parts,
        ):
            front.app = await join(parts, end)
            click.echo(f"listening: {url}{words()}")
            await stop.wait()
    if reasons:
        click.echo(f"rose: {reasons[0]}", err=True)
        raise click.exceptions.Exit(_LOST)
