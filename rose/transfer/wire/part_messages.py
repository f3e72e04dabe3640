"""What a publisher and the part of another rank say to each other, and its bytes.

Numbers are little-endian; `docs/protocol.md`, "The parts of a trainer's ranks", has the tables.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from rose.errors import CorruptData
from rose.transfer.digests import Digest
from rose.transfer.manifest import CHUNK_BYTES_MAX

SERVICE: Final = "rose.transfer.Parts"
FORMAT: Final = 1
LABEL_BYTES_MAX: Final = 4096
MESSAGE_BYTES_MAX: Final = CHUNK_BYTES_MAX + 64
# Tiles in one message of digests, or of a question.
TILES_AT_ONCE: Final = 1 << 17

_ASK: Final = struct.Struct("<IQQQ")  # format, session, number, kept
_LAYOUT_BYTES: Final = 32
_TILE: Final = struct.Struct("<I")
_DIGEST: Final = struct.Struct("<IQQ")


@dataclass(frozen=True, slots=True)
class Ask:
    """What every call begins with.

    Args:
        session: of the publisher; whoever opens another one ends it.
        number: of the newest pack that was asked for, this one included; a call with a lower one
            than the rank has heard was given up, and says nothing.
        kept: of the newest pack that the log has; one that is packed and not kept is taken back.
        rest: what the method needs besides.
    """

    session: int
    number: int
    kept: int
    rest: bytes = b""

    def to_bytes(self) -> bytes:
        """Return the message."""
        return _ASK.pack(FORMAT, self.session, self.number, self.kept) + self.rest

    @classmethod
    def from_bytes(cls, content: bytes) -> "Ask":
        """Read a message.

        Raises:
            CorruptData: it is none of this format.
        """
        if len(content) < _ASK.size or _ASK.unpack_from(content)[0] != FORMAT:
            raise CorruptData(f"these bytes are no call of a part's publisher, format {FORMAT}")
        _, session, number, kept = _ASK.unpack_from(content)
        return cls(session, number, kept, content[_ASK.size :])


def opening(layout: str, label: str) -> bytes:
    """Return the rest of `Open`."""
    return bytes.fromhex(layout) + label.encode()


def read_opening(rest: bytes) -> tuple[str, str]:
    """Return layout and label.

    Raises:
        CorruptData: they are none.
    """
    if len(rest) < _LAYOUT_BYTES:
        raise CorruptData("these bytes open no part")
    return rest[:_LAYOUT_BYTES].hex(), read_label(rest[_LAYOUT_BYTES:])


def read_label(rest: bytes) -> str:
    """Return the name of some weights.

    Raises:
        CorruptData: it is none.
    """
    try:
        label = rest.decode()
    except UnicodeDecodeError:
        label = ""
    if not label or len(rest) > LABEL_BYTES_MAX:
        raise CorruptData("these bytes name no weights")
    return label


def tiles_bytes(tiles: Sequence[int]) -> bytes:
    """Return the rest of `Whole`."""
    return struct.pack(f"<{len(tiles)}I", *tiles)


def read_tiles(rest: bytes) -> tuple[int, ...]:
    """Return tiles, ascending.

    Raises:
        CorruptData: they are none.
    """
    count, over = divmod(len(rest), _TILE.size)
    tiles: tuple[int, ...] = () if over else struct.unpack(f"<{count}I", rest)
    if over or any(one >= next_one for one, next_one in pairwise(tiles)):
        raise CorruptData("these bytes ask for no tiles")
    return tiles


def frame_bytes(tile: int, frame: bytes) -> bytes:
    """Return one message of `Pack` or `Whole`."""
    return _TILE.pack(tile) + frame


def read_frame(content: bytes) -> tuple[int, bytes]:
    """Return a tile and its frame.

    Raises:
        CorruptData: these bytes have none.
    """
    if not _TILE.size < len(content) <= _TILE.size + CHUNK_BYTES_MAX:
        raise CorruptData("these bytes are no frame of a part")
    return _TILE.unpack_from(content)[0], content[_TILE.size :]


def digests_bytes(digests: Iterable[tuple[int, Digest]]) -> bytes:
    """Return one message of `Open`'s answer."""
    return b"".join(_DIGEST.pack(tile, *digest) for tile, digest in digests)


def read_digests(content: bytes) -> Iterator[tuple[int, Digest]]:
    """Yield tiles and their digests.

    Raises:
        CorruptData: these bytes have none.
    """
    if len(content) % _DIGEST.size:
        raise CorruptData("these bytes are no digests of tiles")
    for tile, one, two in _DIGEST.iter_unpack(content):
        yield tile, (one, two)
