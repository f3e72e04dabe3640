"""Security for gRPC: certificates on both sides of a connection, which are optional on loopback."""

from pathlib import Path
from typing import Any, Final

import grpc

from rose.addresses import spelled
from rose.errors import InvalidArgument, RoseError, Unavailable
from rose.transfer.wire.security import Security, TlsFiles

# Handshake errors that mean a refused certificate.
_REFUSED: Final = ("CERTIFICATE_VERIFY_FAILED", "erification", "SSL_ERROR_SSL")
# Time after which a peer whose machine or link is gone is given up, in seconds, while a call waits.
SILENCE_S: Final = 20.0
_OPTIONS: Final = (
    ("grpc.initial_reconnect_backoff_ms", 50),
    # In spite of its name, the time in which a connection and its TLS handshake must be made.
    ("grpc.min_reconnect_backoff_ms", 10_000),
    ("grpc.max_reconnect_backoff_ms", 500),
    # rose's connections go directly to the address, whatever proxies the environment names.
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),  # a new server does not inherit an old back-off
    # A ping after half of it, which TCP must deliver in the other half. A ping may wait longer for
    # its answer, behind a large reply on a slow link.
    ("grpc.keepalive_time_ms", int(500 * SILENCE_S)),
    ("grpc.keepalive_timeout_ms", int(500 * SILENCE_S)),
    ("grpc.http2.max_pings_without_data", 0),
)


def add_port(server: Any, host: str, port: int, security: Security) -> int:
    """Add a port to a gRPC server; return its number.

    Raises:
        Unavailable: the port is taken.
        InvalidArgument: a certificate cannot be read.
    """
    where = spelled(host, port)
    try:
        if security.tls is None:
            return int(server.add_insecure_port(where))
        key, certificate, authority = _contents(security.tls)
        return int(
            server.add_secure_port(
                where,
                grpc.ssl_server_credentials(
                    [(key, certificate)], root_certificates=authority, require_client_auth=True
                ),
            )
        )
    except RuntimeError as error:
        raise Unavailable(f"cannot listen on port {port} of {host}: {error}") from error


def open_channel(host: str, port: int, security: Security, reply_bytes_max: int) -> Any:
    """Return a channel to a server; it connects on first use.

    Raises:
        InvalidArgument: a certificate cannot be read.
    """
    where = spelled(host, port)
    options = (("grpc.max_receive_message_length", reply_bytes_max), *_OPTIONS)
    if security.tls is None:
        return grpc.insecure_channel(where, options=options)
    key, certificate, authority = _contents(security.tls)
    credentials = grpc.ssl_channel_credentials(authority, key, certificate)
    return grpc.secure_channel(where, credentials, options=options)


def failure_of(who: str, what: str, error: Any) -> RoseError:
    """Return the error to raise for a failed call.

    Args:
        who: name of the callee, for messages.
        what: name of the request, for messages.
        error: exception of gRPC.
    """
    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.UNAUTHENTICATED:
        return Unavailable(f"{who} requires another token")
    if code is grpc.StatusCode.INVALID_ARGUMENT:  # a retry would not help
        return InvalidArgument(f"{who} refuses {what}: {details}")
    if code is grpc.StatusCode.UNAVAILABLE and any(one in details for one in _REFUSED):
        return Unavailable(
            f"{who} and this process do not accept each other's certificates: {details}"
        )
    name = "" if code is None else code.name
    return Unavailable(f"{who} did not answer {what}: {name} {details}".strip())


def _contents(tls: TlsFiles) -> tuple[bytes, bytes, bytes]:
    return _read(tls.key), _read(tls.certificate), _read(tls.authority)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidArgument(f"cannot read {path}: {error.strerror or error}") from error
