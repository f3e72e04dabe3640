"""Who may talk: a token on every connection, and certificates of both sides between machines."""

import logging
import secrets
import ssl
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rose.addresses import reachable
from rose.errors import InvalidArgument

TOKEN_BYTES: Final = 32
# More kinds and addresses than a healthy service sees; a flood of them is not worth more lines.
REJECTIONS_MAX: Final = 256

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The certificate of this process and what it takes to check that of others, as PEM.

    Args:
        certificate: of this process, with the host or address that others reach it at.
        key: its private key, without a pass phrase.
        authority: who signs the certificates of all peers.
    """

    certificate: Path
    key: Path
    authority: Path


@dataclass(frozen=True, slots=True)
class Security:
    """What a listener asks of its peers, and a caller shows.

    Args:
        token: 32 bytes that all of them share.
        tls: certificates, without which nothing leaves the machine; None: there are none.
    """

    token: bytes = field(repr=False)
    tls: TlsFiles | None = None

    @classmethod
    def of(cls, token: str | None, tls: TlsFiles | None = None) -> "Security":
        """Read a token; None makes a new one. The files of `tls` are looked at.

        Raises:
            InvalidArgument: the token is none, or a file of `tls` is no use.
        """
        if tls is not None:
            check_files(tls)
        return cls(token_bytes(token), tls)

    def place(self, address: str) -> tuple[str, int]:
        """Return host and port; an address of another machine only with certificates.

        Raises:
            InvalidArgument: it may not be.
        """
        return reachable(address, is_encrypted=self.tls is not None)


def token_bytes(token: str | None) -> bytes:
    """Return a token as bytes, or a new one.

    Raises:
        InvalidArgument: it is none.
    """
    if token is None:
        return secrets.token_bytes(TOKEN_BYTES)
    try:
        content = bytes.fromhex(token)
    except ValueError:
        content = b""
    if len(content) != TOKEN_BYTES:
        raise InvalidArgument(f"a token is {2 * TOKEN_BYTES} hexadecimal digits")
    return content


def context(tls: TlsFiles, *, is_server: bool) -> ssl.SSLContext:
    """Return what sockets are wrapped with: TLS 1.3, and both sides show certificates.

    Raises:
        InvalidArgument: a file cannot be read, or the key is not that of the certificate.
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
    """Refuse certificates that no peer would accept: each side is played here, without a socket.

    Raises:
        InvalidArgument: one sentence: a file is missing, the key is another's, the certificate has
            expired, or another authority signed it.
    """
    server, client = context(tls, is_server=True), context(tls, is_server=False)
    client.check_hostname = False  # it is its own peer here, under no name
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
    """Says of each kind of rejection and each address once that it was. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards what was said
        self._said: set[tuple[str, str]] = set()

    def note(self, kind: str, peer: str) -> bool:
        """Log that `peer` was rejected; return whether that had not been said before."""
        with self._lock:
            is_new = (kind, peer) not in self._said and len(self._said) < REJECTIONS_MAX
            if is_new:
                self._said.add((kind, peer))
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
