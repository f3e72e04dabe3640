"""Addresses of this machine: nothing that rose says between processes is encrypted yet."""

import ipaddress

from rose.errors import InvalidArgument


def loopback(address: str) -> tuple[str, int]:
    """Return host and port of an address that other machines cannot reach.

    Args:
        address: HOST:PORT with a number for each; port 0 lets a listener choose.

    Raises:
        InvalidArgument: it is another machine's, or no address.
    """
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    try:
        is_loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = False
    if not (is_loopback and colon and port.isdecimal() and int(port) < 1 << 16):
        raise InvalidArgument(
            f"address '{address}': nothing is encrypted, so give one of this machine's loopback, "
            "with a port, as in 127.0.0.1:0"
        )
    return host, int(port)
