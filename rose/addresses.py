"""Parsing of network addresses. Without encryption, only loopback addresses are allowed."""

import ipaddress

from rose.errors import InvalidArgument


def loopback(address: str) -> tuple[str, int]:
    """Return host and port of a loopback address.

    Args:
        address: HOST:PORT, both numeric; with port 0 the system chooses the port of a listener.

    Raises:
        InvalidArgument: the address is malformed or not on loopback.
    """
    parts = _parts(address)
    if parts is None or not _is_loopback(parts[0]):
        raise InvalidArgument(
            f"without encryption an address must be numeric, on loopback and with a port, as in "
            f"127.0.0.1:0, got '{address}'"
        )
    return parts


def reachable(address: str, *, is_encrypted: bool) -> tuple[str, int]:
    """Return host and port of an address. Without encryption it must be on loopback.

    Args:
        address: HOST:PORT; with encryption the host may be a name.
        is_encrypted: whether both sides present certificates.

    Raises:
        InvalidArgument: the address is malformed, or it is not on loopback and there is no
            encryption.
    """
    if not is_encrypted:
        return loopback(address)
    parts = _parts(address)
    if parts is None:
        raise InvalidArgument(f"an address must be HOST:PORT, as in 10.0.0.1:5555, got '{address}'")
    return parts


def spelled(host: str, port: int) -> str:
    """Return HOST:PORT, with an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _parts(address: str) -> tuple[str, int] | None:
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (host and colon and port.isdecimal() and int(port) < 1 << 16):
        return None
    return host, int(port)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
