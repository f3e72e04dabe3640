"""Apply or undo a delta file on a checkpoint, or identify the version of a checkpoint."""

import shutil
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from rose.checkpoints.checkpoint import (
    ENDING,
    OTHER_BYTES_MAX,
    THREADS,
    Advance,
    Checkpoint,
    open_checkpoint,
    tiles_of,
    written,
)
from rose.checkpoints.live import LiveTiles
from rose.errors import CorruptData, InvalidArgument, RoseError, Unavailable
from rose.transfer.codec.operations import digest
from rose.transfer.digests import Digest, TileDigests
from rose.transfer.manifest import Chunk
from rose.transfer.plan.tiling import Tiling
from rose_lab.checkpoints.delta_file import DeltaFile


@dataclass(frozen=True, slots=True)
class Identity:
    """Result of comparing a checkpoint with both versions of a delta.

    A changing tile is a tile that the delta changes.

    Args:
        not_base: why the checkpoint is not the base of the delta; None if it is.
        not_target: why the checkpoint is not the target of the delta; None if it is.
        base_tiles: number of changing tiles that equal those of the base.
        target_tiles: number of changing tiles that equal those of the target.
        other_tiles: number of tiles, changing or not, that equal neither version.
    """

    not_base: str | None
    not_target: str | None
    base_tiles: int = 0
    target_tiles: int = 0
    other_tiles: int = 0


def apply_delta(
    checkpoint: Checkpoint, delta: DeltaFile, *, out: Path | None, undo: bool, advance: Advance
) -> tuple[list[str], list[str]]:
    """Apply or undo a delta: write the result to `out`, or change the checkpoint in place.

    The whole checkpoint and the whole delta are checked before anything is written. On failure
    nothing is left at `out`. A failed change in place restores the old bits. If the machine stops
    during a change in place, the checkpoint may be neither version.

    Args:
        checkpoint: the base of the delta, or its target with `undo`.
        delta: changes of the tensors; file names, headers and the index do not change.
        out: path to write the result to, which must not exist; None changes the files in place.
        undo: whether to go from the target back to the base.
        advance: callback that takes the number of bytes read since its last call.

    Returns:
        Names of the folder's entries that are not files of the checkpoint, in two lists: the copied
        files, such as the configuration; and the entries left out, which are large files, folders,
        and tensor files that no index names. Both lists are empty for a change in place.

    Raises:
        InvalidArgument: the checkpoint is another version, `out` exists, the files cannot be
            written, or the delta has the STRAT encoding.
        CorruptData: the delta is damaged.
        Unavailable: a write failed; the message says so if restoring the old bits failed too.
    """
    if out is not None and (out.exists() or out.is_symlink()):
        raise InvalidArgument(f"{out} exists; name a path that does not exist")
    tiling = checkpoint.tiling()
    if out is None:
        with LiveTiles(checkpoint, tiling) as tiles:
            _check(checkpoint, tiling, delta, undo=undo, advance=advance)
            _change(tiles, tiling, delta, undo=undo)
        return [], []
    _check(checkpoint, tiling, delta, undo=undo, advance=advance)
    with written(out, is_folder=checkpoint.is_folder) as partial:
        others = _copy(checkpoint, partial)
        with LiveTiles(open_checkpoint(partial), tiling) as tiles:
            _change(tiles, tiling, delta, undo=undo)
    return others


def identify(checkpoint: Checkpoint, delta: DeltaFile, *, advance: Advance) -> Identity:
    """Compare every tile of a checkpoint with both versions of a delta.

    Raises:
        CorruptData: the delta is damaged. All of it is checked, unless the checkpoint has other
            tensors.
        InvalidArgument: the delta has the STRAT encoding.
    """
    manifest, tiling = delta.manifest, checkpoint.tiling()
    if not delta.is_for(tiling.tiles):
        return Identity(*(2 * ("it has other tensors",)))
    found = _digests(checkpoint, tiling, advance)
    before = dict(enumerate(manifest.tile_digests))
    after = before.copy()
    for chunk in manifest.chunks:
        delta.delta(chunk, tiling.tiles[chunk.tile])
        before[chunk.tile], after[chunk.tile] = delta.ends(chunk, undo=False)

    def fault(total: Digest, ends: Mapping[int, Digest]) -> str | None:
        if found.total == total:
            return None
        wrong = next((tile for tile, end in ends.items() if found[tile] != end), None)
        return "it differs" if wrong is None else f"{tiling.place(wrong).tensor!r} differs"

    changing = [chunk.tile for chunk in manifest.chunks]
    return Identity(
        fault(manifest.base_digest, before),
        fault(manifest.digest, after),
        sum(found[tile] == before[tile] for tile in changing),
        sum(found[tile] == after[tile] for tile in changing),
        sum(found[tile] not in (before[tile], after[tile]) for tile in after),
    )


def _digests(checkpoint: Checkpoint, tiling: Tiling, advance: Advance) -> TileDigests:
    found = {}
    for tile, (_, (units,)) in enumerate(tiles_of(tiling, checkpoint)):
        found[tile] = digest(units, threads=THREADS)
        advance(units.nbytes)
    return TileDigests(found)


def _check(
    checkpoint: Checkpoint, tiling: Tiling, delta: DeltaFile, *, undo: bool, advance: Advance
) -> None:
    """Refuse a checkpoint of another version, and a damaged delta."""
    manifest = delta.manifest
    if not delta.is_for(tiling.tiles):
        raise InvalidArgument(
            f"{delta.path} was made for other tensors than those of {checkpoint.path}"
        )
    found = _digests(checkpoint, tiling, advance)
    totals = manifest.base_digest, manifest.digest
    if found.total != totals[undo]:
        what = "target" if undo else "base"
        raise InvalidArgument(
            f"{checkpoint.path} is not the {what} of {delta.path}; "
            f"run `rose delta verify` to see which version it is"
        )
    fresh = {}
    for chunk in manifest.chunks:
        delta.delta(chunk, tiling.tiles[chunk.tile])
        fresh[chunk.tile] = delta.ends(chunk, undo=undo)[1]
    if found.total_with(fresh) != totals[not undo]:
        raise CorruptData(f"{delta.path} is damaged: its chunks do not add up to its digest")


def _change(tiles: LiveTiles, tiling: Tiling, delta: DeltaFile, *, undo: bool) -> None:
    """Write all tiles that change, or none."""
    with ExitStack() as back:

        def is_moved(chunk: Chunk, *, undo: bool) -> bool:
            tiles.apply(chunk.tile, delta.delta(chunk, tiling.tiles[chunk.tile]), undo=undo)
            return tiles.digest(chunk.tile) == delta.ends(chunk, undo=undo)[1]

        def take_back(chunk: Chunk) -> None:
            with suppress(RoseError):
                is_there = tiles.digest(chunk.tile) == delta.ends(chunk, undo=undo)[0]
                if is_there or is_moved(chunk, undo=not undo):
                    return
            raise Unavailable(
                "a write failed, and restoring the old bits failed too: the checkpoint is neither "
                "version now"
            )

        for chunk in delta.manifest.chunks:
            back.callback(take_back, chunk)
            if not is_moved(chunk, undo=undo):
                name = tiling.place(chunk.tile).tensor
                raise CorruptData(
                    f"{delta.path} is damaged: a tile of {name!r} does not get the listed digest"
                )
        tiles.flush()
        back.pop_all()


def _copy(base: Checkpoint, place: Path) -> tuple[list[str], list[str]]:
    """Copy the tensors of a checkpoint and the small files beside them."""
    if not base.is_folder:
        shutil.copyfile(base.path, place)
        return [], []
    of_base = {file.path.name for file in base.files}
    copied: list[str] = []
    left: list[str] = []
    for one in sorted(base.path.iterdir()):
        is_small = one.is_file() and one.stat().st_size <= OTHER_BYTES_MAX
        is_other = is_small and not one.name.endswith(ENDING)
        if one.name in of_base or is_other:
            shutil.copyfile(one, place / one.name)
        if one.name not in of_base:
            (copied if is_other else left).append(one.name)
    return copied, left
