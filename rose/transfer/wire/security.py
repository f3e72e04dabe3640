"""Access rules: a token on every connection, and certificates on both sides between machines."""

import logging
import secrets
import ssl
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rose.addresses import reachable
from rose.clock import BootClock, Clock
from rose.errors import InvalidArgument
from rose.units import NS_PER_S

TOKEN_BYTES: Final = 32
# Most rejections that are logged in a minute. A healthy service has fewer.
REJECTIONS_MAX: Final = 256
_MINUTE_NS: Final = 60 * NS_PER_S

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Certificate of this process, its key, and the authority that signs peers, as PEM files.

    Args:
        certificate: certificate of this process, for the host or address that peers connect to.
        key: private key, without a pass phrase.
        authority: certificate of the authority that signs all peers.
    """

    certificate: Path
    key: Path
    authority: Path


@dataclass(frozen=True, slots=True)
class Security:
    """Credentials that a listener requires and a caller presents.

    Args:
        token: 32 bytes shared by all processes.
        tls: certificates; without them only loopback is allowed.
    """

    token: bytes = field(repr=False)
    tls: TlsFiles | None = None

    @classmethod
    def of(cls, token: str | None, tls: TlsFiles | None = None) -> "Security":
        """Parse a token (None makes a new one), and check the files of `tls`.

        Raises:
            InvalidArgument: the token is invalid, or a file of `tls` is unusable.
        """
        if tls is not None:
            check_files(tls)
        return cls(token_bytes(token), tls)

    def place(self, address: str) -> tuple[str, int]:
        """Return host and port; another machine's address needs certificates.

        Raises:
            InvalidArgument: the address is not allowed.
        """
        return reachable(address, is_encrypted=self.tls is not None)


def token_bytes(token: str | None) -> bytes:
    """Return a token as bytes; for None, a new token.

    Raises:
        InvalidArgument: the token is invalid.
    """
    if token is None:
        return secrets.token_bytes(TOKEN_BYTES)
    try:
        content = bytes.fromhex(token)
    except (TypeError, ValueError):
        content = b""
    if len(content) != TOKEN_BYTES:
        raise InvalidArgument(f"a token must be {2 * TOKEN_BYTES} hexadecimal digits")
    return content


def context(tls: TlsFiles, *, is_server: bool) -> ssl.SSLContext:
    """Return the context to wrap sockets with: TLS 1.3, with certificates on both sides.

    Raises:
        InvalidArgument: a file cannot be read, or key and certificate do not match.
    """
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.verify_mode = ssl.CERT_REQUIRED
    try:
        made.load_verify_locations(cafile=tls.authority)
    except (OSError, ssl.SSLError) as error:
        raise InvalidArgument(_unread("authority", tls.authority, error)) from error
    try:
        made.load_cert_chain(tls.certificate, tls.key, password=_no_password)
    except (OSError, ssl.SSLError, ValueError) as error:
        where = f"{tls.certificate} and key {tls.key}"
        raise InvalidArgument(f"certificate {where} cannot be used: {_reason(error)}") from error
    return made


def check_files(tls: TlsFiles) -> None:
    """Refuse certificates that no peer would accept, by a handshake of both sides in memory.

    Raises:
        InvalidArgument: a file is missing, the key does not match, the certificate has expired, or
            another authority signed it.
    """
    server, client = context(tls, is_server=True), context(tls, is_server=False)
    client.check_hostname = False  # this process is its own peer here, without a host name
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server, server_side=False),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    try:
        for side in (0, 1, 0, 1):
            with suppress(ssl.SSLWantReadError):
                sides[side].do_handshake()
    except ssl.SSLError as error:
        raise InvalidArgument(
            f"certificate {tls.certificate} is refused under {tls.authority}: {_reason(error)}"
        ) from error


class Rejections:
    """Logs each kind of rejection at most once a minute per address. Any thread may call."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or BootClock()
        self._lock = threading.Lock()  # guards the times
        self._logged_ns: dict[tuple[str, str], int] = {}  # ascending

    def note(self, kind: str, peer: str) -> bool:
        """Log that `peer` was rejected; return whether it was logged."""
        now_ns = self._clock.now_ns()
        with self._lock:
            for known in list(self._logged_ns):
                if self._logged_ns[known] > now_ns - _MINUTE_NS:
                    break
                del self._logged_ns[known]
            is_new = (kind, peer) not in self._logged_ns and len(self._logged_ns) < REJECTIONS_MAX
            if is_new:
                self._logged_ns[kind, peer] = now_ns
        if is_new:
            _LOG.warning("%s was rejected: %s", peer, kind)
        return is_new


def _no_password() -> str:
    raise ValueError("the key has a pass phrase")


def _unread(what: str, path: Path, error: Exception) -> str:
    return f"{what} {path} cannot be used: {_reason(error)}"


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.lower().replace("_", " ")
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error)
