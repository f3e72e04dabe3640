"""What the index of a delta file says, believed only once it was looked at."""

import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from rose.checkpoints.contents import (
    FileLayout,
    Key,
    Layout,
    Presence,
    TensorDelta,
    TensorTile,
    key_of,
)
from rose.checkpoints.delta_body import DeltaBody
from rose.checkpoints.safetensors_header import HEADER_BYTES_MAX, read_header
from rose.checkpoints.stored_dtypes import STORED_DTYPES
from rose.errors import CorruptData
from rose.transfer.digests import Digest
from rose.units import ceil_div

_DIGEST: Final = re.compile(r"[0-9a-f]{32}")


def field(entry: Any, name: str, kind: Any) -> Any:
    """Return a field of an object of the index.

    Raises:
        CorruptData: it is not there, or not of that kind.
    """
    value = entry.get(name, ...) if isinstance(entry, dict) else ...
    # A boolean is an int for Python, but not in a file.
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise CorruptData(f"its index lacks a field {name!r} of the right kind")
    return value


def read_layout(side: dict[str, Any], body: DeltaBody) -> Layout:
    """Return how a version lies on the disk.

    Raises:
        CorruptData: no version lies like that.
    """
    files = tuple(_file_layout(entry, body) for entry in field(side, "files", list))
    is_folder = field(side, "is_folder", bool)
    index = field(side, "index", dict | None)
    if index is not None:
        index = (_file_name(index), body.read(body.piece(field(index, "content", list))))
    names = [file.name for file in files] + ([] if index is None else [index[0]])
    if len(set(names)) != len(names) or not files or (not is_folder and len(names) != 1):
        raise CorruptData("a version of it has files that no checkpoint has")
    return Layout(is_folder, files, index)


def read_tensors(
    entries: list[Any], body: DeltaBody, *, tile_units: int, old: Layout, new: Layout
) -> tuple[TensorDelta, ...]:
    """Return what happens to each tensor of the two versions.

    Raises:
        CorruptData: the entries are not sound, or not of these tensors.
    """
    tensors = tuple(_tensor(entry, body, tile_units) for entry in entries)
    for layout, other in ((old, Presence.NEW), (new, Presence.OLD)):
        said = sorted(tensor.key for tensor in tensors if tensor.presence is not other)
        if said != sorted(_keys(layout)):
            raise CorruptData("its tensors are not those of its files")
    return tensors


def units_of(tensor: TensorDelta) -> int:
    """Return the units of a tensor."""
    stored = STORED_DTYPES[tensor.dtype]
    return math.prod(tensor.shape) * stored.bits // 8 // stored.unit_bytes


def _file_layout(entry: Any, body: DeltaBody) -> FileLayout:
    name, piece = _file_name(entry), body.piece(field(entry, "header", list))
    if piece.nbytes > HEADER_BYTES_MAX:
        raise CorruptData(f"the header of {name} has {piece.nbytes} bytes")
    header = body.read(piece)
    return FileLayout(name, header, read_header(header, name))


def _file_name(entry: Any) -> str:
    name: str = field(entry, "name", str)
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        is_text = False
    else:
        is_text = True
    if not is_text or Path(name).name != name or name in {"", ".", ".."} or "\0" in name:
        raise CorruptData(f"it has a file of the name {name!r}, which is no name of a file")
    return name


def _tensor(entry: Any, body: DeltaBody, tile_units: int) -> TensorDelta:
    name, dtype, presence = (field(entry, one, str) for one in ("name", "dtype", "in"))
    shape = field(entry, "shape", list)
    is_sound = (
        dtype in STORED_DTYPES
        and presence in {one.value for one in Presence}
        and all(type(one) is int and one >= 0 for one in shape)
    )
    if not is_sound:
        raise CorruptData(f"its tensor {name!r} has fields that no tensor has")
    tiles = tuple(_tile(tile, body) for tile in field(entry, "tiles", list))
    tensor = TensorDelta(name, dtype, tuple(shape), Presence(presence), tiles)
    if len(tiles) != ceil_div(units_of(tensor), tile_units):
        raise CorruptData(f"its tensor {name!r} has {len(tiles)} tiles, which are not all of it")
    return tensor


def _tile(entry: Any, body: DeltaBody) -> TensorTile:
    old, new = (_digest(field(entry, side, str)) for side in ("old", "new"))
    frame = field(entry, "frame", list | None)
    if (frame is None) != (old == new):
        raise CorruptData("a tile of it changes without a delta, or has one and does not change")
    return TensorTile(old, new, None if frame is None else body.piece(frame))


def _digest(text: str) -> Digest:
    if not _DIGEST.fullmatch(text):
        raise CorruptData(f"it has the digest {text!r}")
    return int(text[:16], 16), int(text[16:], 16)


def _keys(layout: Layout) -> Iterator[Key]:
    names: set[str] = set()
    for stored in layout.stored():
        if stored.name in names:
            raise CorruptData(f"a version of it has {stored.name!r} twice")
        names.add(stored.name)
        yield key_of(stored)
