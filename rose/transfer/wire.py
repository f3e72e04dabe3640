"""The bytes of the chunk plane: a greeting, then questions and answers, over one TCP connection.

Little-endian. Whoever sees bytes that are not of this protocol closes the connection.
"""

import socket
import struct
from typing import Final

from rose.clock import Clock
from rose.errors import CorruptData, DeadlineExceeded, Unavailable
from rose.transfer.manifest import CHUNK_BYTES_MAX, WHOLE, UpdateKey
from rose.units import NS_PER_S

TOKEN_BYTES: Final = 32

_VERSION: Final = 2
# magic, version, zero, token
_GREETING: Final = struct.Struct(f"<8sII{TOKEN_BYTES}s")
_GREETING_MAGIC: Final = b"ROSECHK2"
# magic, zero, n, base_n, tile, zero
_ASK: Final = struct.Struct("<4sIQqII")
_ASK_MAGIC: Final = b"RASK"
# magic, is_kept, n, base_n, tile, bytes that follow
_ANSWER: Final = struct.Struct("<4sIQqII")
_ANSWER_MAGIC: Final = b"RANS"

GREETING_BYTES: Final = _GREETING.size
ASK_BYTES: Final = _ASK.size
ANSWER_BYTES: Final = _ANSWER.size


def greeting(token: bytes) -> bytes:
    """Return what a receiver says first."""
    return _GREETING.pack(_GREETING_MAGIC, _VERSION, 0, token)


def read_greeting(content: bytes) -> bytes:
    """Return the token of a greeting.

    Raises:
        CorruptData: it is no greeting of this version.
    """
    magic, version, zero, token = _GREETING.unpack(content)
    if (magic, version, zero) != (_GREETING_MAGIC, _VERSION, 0):
        raise CorruptData("these bytes do not greet a weight server")
    return bytes(token)


def ask(key: UpdateKey, tile: int) -> bytes:
    """Return the question for a chunk."""
    return _ASK.pack(_ASK_MAGIC, 0, key.n, key.base_n, tile, 0)


def read_ask(content: bytes) -> tuple[UpdateKey, int]:
    """Return whose chunk, and which tile.

    Raises:
        CorruptData: it is no question.
    """
    magic, zero, n, base_n, tile, behind = _ASK.unpack(content)
    if (magic, zero, behind) != (_ASK_MAGIC, 0, 0) or base_n < WHOLE:
        raise CorruptData("these bytes ask for no chunk")
    return UpdateKey(n, base_n), tile


def answer(key: UpdateKey, tile: int, frame: bytes | None) -> bytes:
    """Return what precedes the frame; None: it is not kept."""
    is_kept = frame is not None
    return _ANSWER.pack(_ANSWER_MAGIC, is_kept, key.n, key.base_n, tile, len(frame or b""))


def read_answer(content: bytes, key: UpdateKey, tile: int) -> int | None:
    """Return how many bytes follow, or None when the chunk is not kept.

    Raises:
        CorruptData: it is no answer to the question for this chunk.
    """
    magic, is_kept, n, base_n, its_tile, nbytes = _ANSWER.unpack(content)
    is_its = magic == _ANSWER_MAGIC and (n, base_n, its_tile) == (key.n, key.base_n, tile)
    if not is_its or is_kept not in (0, 1):
        raise CorruptData(f"these bytes do not answer for tile {tile} of version {key.n}")
    if nbytes > CHUNK_BYTES_MAX or (nbytes == 0) == bool(is_kept):
        raise CorruptData(f"the answer for tile {tile} has {nbytes} bytes")
    return int(nbytes) if is_kept else None


def receive(connection: socket.socket, nbytes: int, timeout_s: float, clock: Clock) -> bytearray:
    """Return exactly so many bytes, which all come within the time.

    Raises:
        Unavailable: the peer closed the connection, or it broke.
        DeadlineExceeded: they did not come in time.
    """
    content = bytearray(nbytes)
    room = memoryview(content)
    deadline_ns = clock.now_ns() + int(timeout_s * NS_PER_S)
    while room:
        left_s = (deadline_ns - clock.now_ns()) / NS_PER_S
        if left_s <= 0:
            raise DeadlineExceeded(f"{nbytes} bytes did not come within {timeout_s} s")
        connection.settimeout(left_s)
        try:
            got = connection.recv_into(room)
        except TimeoutError as error:
            raise DeadlineExceeded(f"{nbytes} bytes did not come within {timeout_s} s") from error
        except OSError as error:
            raise Unavailable(f"the connection broke: {error}") from error
        if got == 0:
            raise Unavailable("the peer closed the connection")
        room = room[got:]
    return content
