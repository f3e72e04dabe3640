"""Serve the application over HTTP, with uvicorn in the caller's event loop."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

import uvicorn
from typing_extensions import override

from rose.adapters.connections import connections_of, raise_descriptors
from rose.adapters.guard import Guard
from rose.addresses import reachable, spelled
from rose.errors import InvalidArgument, Unavailable

_BACKLOG: Final = 2048
# Clients and proxies keep connections in pools for 60 s and more, and fail if one is closed.
_KEEP_ALIVE_S: Final = 90
_DRAIN_S: Final = 5.0  # time for open requests to end when the server closes
_CLOSE_S: Final = 2  # time for their answers to be sent
_STARTED_POLL_S: Final = 0.005

# A certificate, its key and, if clients must present certificates, the authority that signs these.
Tls = tuple[Path, Path] | tuple[Path, Path, Path]


class _Server(uvicorn.Server):
    """A server that installs no signal handlers."""

    @override
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture nothing."""
        yield


@asynccontextmanager
async def listening(
    app: Any, address: str = "127.0.0.1:0", *, tls: Tls | None = None
) -> AsyncIterator[str]:
    """Serve an application, and yield its URL.

    At the end, requests of an application of `rollout_app` may end for some seconds. Then they end
    with an error, and the server closes.

    Args:
        app: application of `rollout_app`.
        address: HOST:PORT; port 0 picks a free port. Without `tls` the host must be on loopback.
        tls: PEM files of a certificate, its key and an authority that signs clients' certificates.
            Without an authority, clients need no certificate.

    Raises:
        InvalidArgument: the address is malformed, or is not on loopback while `tls` is None; or the
            files of `tls` cannot be used.
        Unavailable: the address is in use.
    """
    most = raise_descriptors()
    host, port = reachable(address, is_encrypted=tls is not None)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        bound = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise Unavailable(f"cannot listen at {address}: {error.strerror or error}") from error
    with bound:
        config = uvicorn.Config(
            app,
            http=connections_of(most),
            ws="none",
            lifespan="off",
            log_level="warning",
            access_log=False,
            server_header=False,
            backlog=_BACKLOG,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_CLOSE_S,
            ssl_certfile=None if tls is None else tls[0],
            ssl_keyfile=None if tls is None else tls[1],
            ssl_ca_certs=None if tls is None or len(tls) < 3 else str(tls[2]),
            ssl_cert_reqs=ssl.CERT_NONE if tls is None or len(tls) < 3 else ssl.CERT_REQUIRED,
        )
        try:
            config.load()
        except OSError as error:  # The errors of the ssl module are of this class too.
            raise InvalidArgument(f"the files of tls cannot be used: {error}") from error
        server = _Server(config)
        serving = asyncio.get_running_loop().create_task(server.serve(sockets=[bound]))
        while not server.started and not serving.done():
            await asyncio.sleep(_STARTED_POLL_S)
        try:
            scheme = "http" if tls is None else "https"
            yield f"{scheme}://{spelled(*bound.getsockname()[:2])}"
        finally:
            if isinstance(app, Guard):
                await app.stop(_DRAIN_S)
            server.should_exit = True
            await serving
