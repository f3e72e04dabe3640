"""The bytes of the chunk plane, packed as `docs/protocol.md` says: what the core is tested with."""

import struct
from typing import Final

from rose.transfer.manifest import UpdateKey

VERSION: Final = 2
# magic, version, stream, token
GREETING: Final = struct.Struct("<8sII32s")
# magic, version, zero
HELLO: Final = struct.Struct("<8sII")
# magic, zero, n, base_n, tile, zero
ASK: Final = struct.Struct("<4sIQqII")
# magic, is_kept, n, base_n, tile, bytes that follow
ANSWER: Final = struct.Struct("<4sIQqII")


def greeting(token: bytes, stream: int = 0) -> bytes:
    """Return what a receiver says first."""
    return GREETING.pack(b"ROSECHK2", VERSION, stream, token)


def hello() -> bytes:
    """Return what a server answers to the right token."""
    return HELLO.pack(b"ROSEHEL2", VERSION, 0)


def ask(key: UpdateKey, tile: int) -> bytes:
    """Return the question for a chunk."""
    return ASK.pack(b"RASK", 0, key.n, key.base_n, tile, 0)


def read_ask(content: bytes) -> tuple[UpdateKey, int]:
    """Return whose chunk, and which tile."""
    _, _, n, base_n, tile, _ = ASK.unpack(content)
    return UpdateKey(n, base_n), tile


def answer(key: UpdateKey, tile: int, nbytes: int, is_kept: int | None = None) -> bytes:
    """Return what precedes a frame."""
    kept = nbytes > 0 if is_kept is None else is_kept
    return ANSWER.pack(b"RANS", kept, key.n, key.base_n, tile, nbytes)
