"""Parsing of network addresses. Without encryption, only loopback addresses are allowed."""

import ipaddress
import re
import socket
from typing import Final

from rose.errors import InvalidArgument

_ADDRESS: Final = re.compile(r"(?:\[(?P<six>[^\[\]]+)\]|(?P<host>[^\[\]:]+)):(?P<port>[0-9]{1,5})")


def loopback(address: str) -> tuple[str, int]:
    """Return numeric host and port of a loopback address.

    Args:
        address: HOST:PORT; with port 0 the system chooses the port of a listener. A name stands
            for one address, IPv4 if it has one, so that no later look-up can lead elsewhere.

    Raises:
        InvalidArgument: the address is malformed, or one of its name's addresses is not on
            loopback.
    """
    host, port = _parts(address)
    found = _addresses(host, address)
    outside = [one for one in found if not one.is_loopback]
    if outside:
        named = "" if str(outside[0]) == host else f" ({outside[0]})"
        raise InvalidArgument(
            f"without encryption an address must be on loopback, as 127.0.0.1:0 is, got "
            f"'{address}'{named}"
        )
    return str(min(found, key=lambda one: one.version)), port


def reachable(address: str, *, is_encrypted: bool) -> tuple[str, int]:
    """Return host and port of an address. Without encryption it must be on loopback.

    Args:
        address: HOST:PORT; with encryption a name stays a name, because certificates have names.
        is_encrypted: whether both sides present certificates.

    Raises:
        InvalidArgument: the address is malformed, or it is not on loopback and there is no
            encryption.
    """
    return _parts(address) if is_encrypted else loopback(address)


def spelled(host: str, port: int) -> str:
    """Return HOST:PORT, with an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _parts(address: str) -> tuple[str, int]:
    found = _ADDRESS.fullmatch(address)
    if found is None or int(found["port"]) >= 1 << 16:
        raise InvalidArgument(
            f"an address must be HOST:PORT with a port below 65536, such as 127.0.0.1:0 on "
            f"loopback, [fd00::7]:5555 or trainer.example:5555, got '{address}'"
        )
    return found["six"] or found["host"], int(found["port"])


def _addresses(host: str, address: str) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """Return the addresses of a host, which may be an address itself."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return [ipaddress.ip_address(place[0]) for *_, place in found]
    except (OSError, UnicodeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidArgument(f"the host of '{address}' has no address: {reason}") from error
