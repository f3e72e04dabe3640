"""The first bytes of a connection of the chunk plane, as in `docs/protocol.md`."""

import struct
from typing import Final

HELLO: Final = struct.Struct("<8sII")  # magic, version, zero


def greeting(token: bytes) -> bytes:
    """Return the first bytes of a receiver: magic, version, stream, token."""
    return struct.pack("<8sII32s", b"ROSECHK2", 2, 0, token)


def hello() -> bytes:
    """Return what a server answers to the right token."""
    return HELLO.pack(b"ROSEHEL2", 2, 0)
