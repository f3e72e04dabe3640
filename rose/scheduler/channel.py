"""What both ends of the stream between a scheduler and a worker's process agree on."""

import ipaddress
from typing import Final

from rose.errors import InvalidArgument
from rose.scheduler.wire import MESSAGE_BYTES_MAX

SERVICE: Final = "rose.scheduler.Worker"
METHOD: Final = "Turns"
# Whoever connects shows the token that the worker's process told its parent.
TOKEN_KEY: Final = "rose-token"
OPTIONS: Final = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    # A proxy named by the environment has no business between two processes of one machine.
    ("grpc.enable_http_proxy", 0),
    # Another process must not be able to listen on the same port and take schedulers away.
    ("grpc.so_reuseport", 0),
    # Two channels to one address are two connections: one that is slow holds up no other.
    ("grpc.use_local_subchannel_pool", 1),
)


def check_loopback(address: str) -> None:
    """Refuse an address that is not of this machine: the stream is not encrypted.

    Raises:
        InvalidArgument: the host is not a loopback address, or there is no port.
    """
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not port.isdecimal():
        raise InvalidArgument(f"'{address}' is no address: give HOST:PORT, such as 127.0.0.1:0")
    if host == "localhost":
        return
    try:
        is_loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = False
    if not is_loopback:
        raise InvalidArgument(
            f"'{address}' is not of this machine: the stream is not encrypted, use 127.0.0.1"
        )
