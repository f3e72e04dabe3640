"""Addresses that processes are reached at: without encryption, those of this machine only."""

import ipaddress

from rose.errors import InvalidArgument


def loopback(address: str) -> tuple[str, int]:
    """Return host and port of an address that other machines cannot reach.

    Args:
        address: HOST:PORT with a number for each; port 0 lets a listener choose.

    Raises:
        InvalidArgument: it is another machine's, or no address.
    """
    parts = _parts(address)
    if parts is None or not _is_loopback(parts[0]):
        raise InvalidArgument(
            f"address '{address}': nothing is encrypted, so give one of this machine's loopback, "
            "with a port, as in 127.0.0.1:0"
        )
    return parts


def reachable(address: str, *, is_encrypted: bool) -> tuple[str, int]:
    """Return host and port of an address: of any machine, where what is said there is encrypted.

    Args:
        address: HOST:PORT; the host may be a name only where it is encrypted.
        is_encrypted: whether both sides show certificates.

    Raises:
        InvalidArgument: it is no address, or another machine's and nothing is encrypted.
    """
    if not is_encrypted:
        return loopback(address)
    parts = _parts(address)
    if parts is None:
        raise InvalidArgument(f"address '{address}' is not HOST:PORT, as in 10.0.0.1:5555")
    return parts


def spelled(host: str, port: int) -> str:
    """Return an address as it is written."""
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
