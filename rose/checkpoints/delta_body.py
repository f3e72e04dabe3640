"""The pieces of a delta file: ranges of its body, believed only if they are as written."""

import hashlib
import re
from typing import Any, BinaryIO, Final

from rose.checkpoints.contents import Piece
from rose.errors import CorruptData, Unavailable

_SHA256: Final = re.compile(r"[0-9a-f]{64}")


class DeltaBody:
    """The body of an open delta file.

    Args:
        file: open for reading; its position is moved.
        begin: where the body starts in the file.
        nbytes: of the body.
    """

    def __init__(self, file: BinaryIO, *, begin: int, nbytes: int) -> None:
        self._file = file
        self._begin = begin
        self._nbytes = nbytes
        self._pieces: dict[int, Piece] = {}

    def piece(self, entry: list[Any]) -> Piece:
        """Take what the index says about a piece.

        Raises:
            CorruptData: it is none, or overlaps another.
        """
        kinds = [type(field) for field in entry]
        if kinds != [int, int, str] or not _SHA256.fullmatch(entry[2]):
            raise CorruptData("a piece of it is not an offset, a size and a SHA-256")
        piece = Piece(*entry)
        if not 0 <= piece.offset <= piece.offset + piece.nbytes <= self._nbytes:
            raise CorruptData(f"a piece of it, at {piece.offset}, is outside of the body")
        if piece.nbytes and self._pieces.setdefault(piece.offset, piece) != piece:
            raise CorruptData(f"two pieces of it begin at {piece.offset}")
        return piece

    def check_filled(self) -> None:
        """Look whether the pieces taken so far are all of the body.

        Raises:
            CorruptData: they overlap, or leave bytes over.
        """
        at = 0
        for offset, piece in sorted(self._pieces.items()):
            if offset != at:
                raise CorruptData(f"its pieces do not lie one behind another, at {at}")
            at += piece.nbytes
        if at != self._nbytes:
            raise CorruptData(f"its body has {self._nbytes} bytes, its pieces {at}")

    def read(self, piece: Piece) -> bytes:
        """Return the bytes of a piece.

        Raises:
            CorruptData: they are not as they were written.
            Unavailable: the file cannot be read.
        """
        try:
            self._file.seek(self._begin + piece.offset)
            content = self._file.read(piece.nbytes)
        except OSError as error:
            raise Unavailable(f"cannot read the delta file: {error.strerror or error}") from None
        if hashlib.sha256(content).hexdigest() != piece.sha256:
            raise CorruptData(f"the SHA-256 of its bytes from {piece.offset} on differs")
        return content
