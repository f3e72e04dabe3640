"""Addresses of processes; without encryption only those of this machine are allowed."""

import ipaddress

from rose.errors import InvalidArgument


def loopback(address: str) -> tuple[str, int]:
    """Return host and port of a loopback address.

    Args:
        address: HOST:PORT, both numeric; port 0 lets a listener choose.

    Raises:
        InvalidArgument: the address is malformed or not on loopback.
    """
    parts = _parts(address)
    if parts is None or not _is_loopback(parts[0]):
        raise InvalidArgument(
            f"address '{address}': nothing is encrypted, so give one of this machine's loopback, "
            "with a port, as in 127.0.0.1:0"
        )
    return parts


def reachable(address: str, *, is_encrypted: bool) -> tuple[str, int]:
    """Return host and port of an address, which may be another machine's only with encryption.

    Args:
        address: HOST:PORT; the host may be a name only with encryption.
        is_encrypted: whether both sides present certificates.

    Raises:
        InvalidArgument: the address is malformed, or neither on loopback nor encrypted.
    """
    if not is_encrypted:
        return loopback(address)
    parts = _parts(address)
    if parts is None:
        raise InvalidArgument(f"address '{address}' is not HOST:PORT, as in 10.0.0.1:5555")
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
