"""What both ends of the stream between a scheduler and a worker's process agree on."""

from typing import Final

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
