"""Update files: a manifest and its frames, from a relay on disk or from `rose delta make`.

The bytes are in `docs/protocol.md`, "Update files".
"""

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from rose.errors import CorruptData, InvalidArgument
from rose.transfer import manifest_bytes
from rose.transfer.manifest import CHUNK_BYTES_MAX, Manifest

_MAGIC: Final = b"ROSEUPM2"
_MAGIC_BEFORE: Final = b"ROSEUPD1"
# magic, size of the manifest, its CRC
_HEADER: Final = struct.Struct("<8sII")
# tile, size of the frame, its CRC; the frame follows
_RECORD: Final = struct.Struct("<III")


@dataclass(slots=True)
class UpdateFile:
    """The undamaged part of an update file.

    Args:
        manifest: manifest of the update.
        end: offset after the last complete record.
        places: (offset, size, CRC) of each frame, by tile.
    """

    manifest: Manifest
    end: int
    places: dict[int, tuple[int, int, int]] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Return the size of all frames, in bytes."""
        return sum(nbytes for _, nbytes, _ in self.places.values())

    def add(self, frames: Mapping[int, bytes]) -> list[bytes]:
        """Add frames, by tile, and return the bytes to append."""
        parts: list[bytes] = []
        for tile, frame in frames.items():
            crc = zlib.crc32(frame)
            parts += (_RECORD.pack(tile, len(frame), crc), frame)
            self.places[tile] = (self.end + _RECORD.size, len(frame), crc)
            self.end += _RECORD.size + len(frame)
        return parts


def begin_update(manifest: Manifest) -> tuple[UpdateFile, bytes]:
    """Return an update file that has no frames yet, and the bytes of the file."""
    message = manifest_bytes.to_bytes(manifest)
    header = _HEADER.pack(_MAGIC, len(message), zlib.crc32(message)) + message
    return UpdateFile(manifest, len(header)), header


def read_update(content: bytes | memoryview) -> UpdateFile:
    """Read the manifest, and all records before the first damaged record.

    Raises:
        CorruptData: the manifest is damaged.
        InvalidArgument: the file was written by an earlier rose.
    """
    view = memoryview(content)
    if len(view) < _HEADER.size:
        raise CorruptData("the file is cut off in its header")
    magic, nbytes, crc = _HEADER.unpack_from(view)
    if magic == _MAGIC_BEFORE:
        raise InvalidArgument("an earlier rose wrote this update: remove the file")
    message = view[_HEADER.size : _HEADER.size + nbytes]
    if magic != _MAGIC or len(message) != nbytes or zlib.crc32(message) != crc:
        raise CorruptData("the file does not begin with a sound update header")
    file = UpdateFile(manifest_bytes.from_bytes(bytes(message)), _HEADER.size + nbytes)
    sizes = {chunk.tile: chunk.nbytes for chunk in file.manifest.chunks}
    while len(view) - file.end >= _RECORD.size:
        tile, nbytes, crc = _RECORD.unpack_from(view, file.end)
        first = file.end + _RECORD.size
        frame = view[first : first + nbytes]
        is_its = nbytes <= CHUNK_BYTES_MAX and sizes.get(tile) == nbytes == len(frame)
        if not is_its or zlib.crc32(frame) != crc:
            break
        file.places[tile] = (first, nbytes, crc)
        file.end = first + nbytes
    return file
