"""A delta file: an update file between two checkpoints that have the same tiles."""

import tempfile
from pathlib import Path
from typing import Final

from rose.checkpoints.checkpoint import THREADS, Advance, Checkpoint, tiles_of, written
from rose.checkpoints.safetensors_file import mapped
from rose.errors import CorruptData, InvalidArgument
from rose.transfer.codec.delta import Delta, frame_digests
from rose.transfer.codec.operations import delta_pack
from rose.transfer.digests import Digest, TileDigests
from rose.transfer.manifest import Chunk, Manifest, Version
from rose.transfer.publishing.contributor import chunk_of
from rose.transfer.publishing.update_file import begin_update, read_update
from rose.transfer.receiving.puller import sound_delta
from rose.transfer.tiles import Tile, Tiles

_RUN: Final = "delta"


def make_delta_file(old: Checkpoint, new: Checkpoint, path: Path, *, advance: Advance) -> Manifest:
    """Write a file that turns the tensors of `old` into those of `new`, and back.

    The file appears whole or not at all. Memory use does not grow with the checkpoints.

    Args:
        old: base version.
        new: target version, with tensors of the same names, dtypes and shapes.
        path: delta file to write, which must not exist.
        advance: callback that takes the number of bytes of `old` read since its last call.

    Raises:
        InvalidArgument: the tensors differ, `path` exists, or it cannot be written.
    """
    if path.exists():
        raise InvalidArgument(f"{path} exists; name a path that does not exist")
    tiling = new.tiling()
    if old.tiling().tiles != tiling.tiles:
        here, there = (
            {name: (one.stored.dtype, one.stored.shape) for name, one in side.tensors.items()}
            for side in (old, new)
        )
        name = min(one for one in here.keys() | there.keys() if here.get(one) != there.get(one))
        raise InvalidArgument(
            f"{name!r} is not the same tensor in {old.path} and {new.path}: a delta needs tensors "
            f"of the same names, dtypes and shapes in both"
        )
    before: dict[int, Digest] = {}
    after: dict[int, Digest] = {}
    chunks: list[Chunk] = []
    with written(path) as partial, tempfile.TemporaryFile(dir=partial.parent) as frames:
        for tile, (_, (one, other)) in enumerate(tiles_of(tiling, old, new)):
            delta = delta_pack(other, one.copy(), threads=THREADS)
            before[tile], after[tile] = delta.base_digest, delta.digest
            if delta.changed:
                frame = delta.to_bytes()
                chunks.append(chunk_of(tile, delta, frame))
                frames.write(frame)
            advance(one.nbytes)
        manifest = Manifest(
            Version(_RUN, 0, 1),
            Version(_RUN, 0, 0),
            TileDigests(after).total,
            TileDigests(before).total,
            tiling.tiles.layout,
            len(tiling.tiles),
            tiling.tiles.count,
            tuple(chunks),
            tuple(after.values()),
        )
        update, header = begin_update(manifest)
        frames.seek(0)
        with partial.open("wb") as file:
            file.write(header)
            for chunk in chunks:
                file.writelines(update.add({chunk.tile: frames.read(chunk.nbytes)}))
    return manifest


class DeltaFile:
    """A complete update file, made by `rose delta make` or stored by a relay.

    The file must not be shortened while it is open: a read past its end kills the process.

    Raises:
        InvalidArgument: the file cannot be read, or holds whole weights.
        CorruptData: the file is damaged, or not an update file.
    """

    def __init__(self, path: Path) -> None:
        self.path: Final = path
        content = memoryview(mapped(path))
        try:
            update = read_update(content)
            self.manifest: Final = update.manifest
            if len(update.places) < len(self.manifest.chunks) or update.end < len(content):
                raise CorruptData(f"its chunks are damaged from byte {update.end} on")  # noqa: TRY301
            self._frames = {
                tile: content[first : first + nbytes]
                for tile, (first, nbytes, _) in update.places.items()
            }
            self._before = {tile: frame_digests(one)[0] for tile, one in self._frames.items()}
        except CorruptData as error:
            raise CorruptData(f"{path} cannot be used: {error}") from None
        if self.manifest.is_snapshot:
            raise InvalidArgument(f"{path} holds whole weights, not a delta")

    def is_for(self, tiles: Tiles) -> bool:
        """Return True if the delta is for weights with these tiles."""
        return (self.manifest.layout, self.manifest.tile_count) == (tiles.layout, len(tiles))

    def ends(self, chunk: Chunk, *, undo: bool) -> tuple[Digest, Digest]:
        """Return the digests of a tile before and after its delta is applied or undone."""
        before, after = self._before[chunk.tile], chunk.digest
        return (after, before) if undo else (before, after)

    def delta(self, chunk: Chunk, tile: Tile) -> Delta:
        """Return the delta of a tile, checked against its chunk.

        Raises:
            CorruptData: the frame is damaged.
            InvalidArgument: the frame has the STRAT encoding, which only receivers can decode.
        """
        try:
            delta = sound_delta(self._frames[chunk.tile], chunk, tile)
        except CorruptData as error:
            raise CorruptData(f"{self.path} cannot be used: {error}") from None
        if delta.rule is not None:
            raise InvalidArgument(f"{self.path} is coded as STRAT, which only receivers can read")
        return delta
