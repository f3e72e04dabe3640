"""Read a delta file: what turns one checkpoint into another, and back."""

import hashlib
import json
import os
import zlib
from pathlib import Path
from typing import Any, Final

from typing_extensions import Self

from rose.checkpoints.checkpoint import TILE_UNITS
from rose.checkpoints.contents import FORMAT, Layout, TensorDelta
from rose.checkpoints.delta_body import DeltaBody
from rose.checkpoints.delta_index import field, read_layout, read_tensors, units_of
from rose.checkpoints.make import BODY_AT, CRC, HEADER, MAGIC
from rose.checkpoints.stored_dtypes import STORED_DTYPES
from rose.errors import CorruptData, InvalidArgument
from rose.transfer.codec.delta import Delta
from rose.transfer.codec.operations import delta_check
from rose.whole_file import open_input

_INDEX_BYTES_MAX: Final = 1 << 28


class DeltaFile:
    """A delta file, open for reading. One thread uses it; it is a context that closes it.

    Args:
        path: of it.

    Raises:
        InvalidArgument: it cannot be read, or is of another version.
        CorruptData: it is not a delta file, or not as it was written.
    """

    def __init__(self, path: Path) -> None:
        self.path: Final = path
        try:
            self._file = open_input(path)
        except OSError as error:
            raise InvalidArgument(f"cannot read {path}: {error.strerror or error}") from None
        is_sound = False
        try:
            self.nbytes: Final = os.fstat(self._file.fileno()).st_size
            self._body, content = self._read_index()
            self.tile_units: Final[int] = field(content, "tile_units", int)
            if not 0 < self.tile_units <= TILE_UNITS:
                raise CorruptData(f"its tiles have {self.tile_units} elements")  # noqa: TRY301
            self.old: Final = read_layout(field(content, "old", dict), self._body)
            self.new: Final = read_layout(field(content, "new", dict), self._body)
            self.tensors: Final = read_tensors(
                field(content, "tensors", list),
                self._body,
                tile_units=self.tile_units,
                old=self.old,
                new=self.new,
            )
            self._body.check_filled()
            is_sound = True
        except OSError as error:
            raise InvalidArgument(f"cannot read {path}: {error.strerror or error}") from None
        except CorruptData as error:
            raise CorruptData(f"{path} cannot be used: {error}") from None
        finally:
            if not is_sound:
                self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def before(self, *, undo: bool) -> Layout:
        """Return how the version lies on the disk that it is applied to, or undone from."""
        return self.new if undo else self.old

    def after(self, *, undo: bool) -> Layout:
        """Return how the version lies on the disk that comes of it."""
        return self.old if undo else self.new

    def frame(self, tensor: TensorDelta, number: int) -> Delta | None:
        """Read the delta of one tile; None if nothing changes there.

        Raises:
            CorruptData: it is not as it was written.
        """
        tile = tensor.tiles[number]
        if tile.frame is None:
            return None
        where = f"{self.path} cannot be used: the delta of {tensor.name!r}, tile {number}"
        try:
            delta = Delta.from_bytes(self._body.read(tile.frame))
            delta_check(delta)
        except CorruptData as error:
            raise CorruptData(f"{where}: {error}") from None
        width = 8 * STORED_DTYPES[tensor.dtype].unit_bytes
        count = min(self.tile_units, units_of(tensor) - number * self.tile_units)
        ends = (delta.base_digest, delta.digest)
        if (delta.count, delta.width) != (count, width) or ends != (tile.old, tile.new):
            raise CorruptData(f"{where}, is of other elements")
        return delta

    def check_frames(self) -> None:
        """Read every delta of it.

        Raises:
            CorruptData: one is not as it was written.
        """
        for tensor in self.tensors:
            for number in range(len(tensor.tiles)):
                self.frame(tensor, number)

    def _read_index(self) -> tuple[DeltaBody, dict[str, Any]]:
        head = self._file.read(BODY_AT)
        if not head.startswith(MAGIC):
            raise CorruptData("it is not a delta file of rose: it begins with another magic")
        if len(head) < BODY_AT:
            raise CorruptData(f"it is cut off inside its header, at byte {len(head)}")
        if zlib.crc32(head[: HEADER.size]) != CRC.unpack_from(head, HEADER.size)[0]:
            raise CorruptData("the checksum of its header differs")
        _, version, zero, body, index, sha256, other_zero = HEADER.unpack_from(head)
        if version != FORMAT:
            raise InvalidArgument(
                f"{self.path} has version {version}; this rose reads version {FORMAT}"
            )
        if zero or other_zero or index > _INDEX_BYTES_MAX:
            raise CorruptData("its header has fields that no delta file has")
        if BODY_AT + body + index != self.nbytes:
            raise CorruptData(
                f"it has {self.nbytes} bytes, its header says {BODY_AT + body + index}"
            )
        self._file.seek(BODY_AT + body)
        text = self._file.read(index)
        if hashlib.sha256(text).digest() != sha256:
            raise CorruptData("the checksum of its index differs")
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise CorruptData(f"its index is not JSON: {error}") from None
        if field(content, "format", int) != FORMAT:
            raise CorruptData("its index is of another format")
        return DeltaBody(self._file, begin=BODY_AT, nbytes=body), content
