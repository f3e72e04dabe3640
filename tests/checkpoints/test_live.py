"""Checkpoints as tiles, and as weights that are changed where they lie."""

import os
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.checkpoints.checkpoint import open_checkpoint
from rose.checkpoints.live import LiveTiles, create_checkpoint
from rose.errors import InvalidArgument, Unavailable
from rose.transfer.codec.operations import delta_pack
from rose.transfer.plan import SourceRanks, make_plan
from rose.transfer.plan.spec import LocalView, Piece, Region, Replica, ShardMap, TensorSpec
from rose.transfer.plan.tiling import planned_tiling
from rose.transfer.tensors import STORED_DTYPES
from rose.transfer.tiles import TILE_BYTES, ShardViews
from tests.checkpoints.mapped import mapped

SHAPES = {
    "norm": ("F32", (5,)),
    "large": ("BF16", (3, TILE_BYTES // 4, 2)),
    "scale": ("U8", (3,)),
    "wide": ("I64", (2, 2)),
    "empty": ("F16", (0, 4)),
    "scalar": ("F32", ()),
}


def made(folder: Path, shapes: dict[str, tuple[str, tuple[int, ...]]] = SHAPES) -> Path:
    path = create_checkpoint(folder, shapes)
    rng = np.random.default_rng(7)
    for row in mapped(path).values():
        row[:] = rng.integers(0, np.iinfo(row.dtype).max, row.size, dtype=row.dtype)
    return path


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=("Cs",)), max_size=5).filter(
            lambda name: name != "__metadata__"
        ),
        st.tuples(
            st.sampled_from(
                # safetensors has no C128
                sorted(name for name, one in STORED_DTYPES.items() if 8 <= one.bits < 128)
            ),
            st.lists(st.integers(0, 4), max_size=3).map(tuple),
        ),
        max_size=6,
    )
)
def test_checkpoint_that_is_made_is_read(shapes: dict[str, tuple[str, tuple[int, ...]]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = open_checkpoint(create_checkpoint(Path(folder), shapes)).tensors
    assert {name: (one.stored.dtype, one.stored.shape) for name, one in found.items()} == shapes
    assert all(one.stored.begin % one.stored.stored.unit_bytes == 0 for one in found.values())


def test_tiles_cover_every_unit_of_a_checkpoint_once(tmp_path: Path) -> None:
    path = made(tmp_path)
    checkpoint, rows = open_checkpoint(path), mapped(path)
    tiling = checkpoint.tiling()
    for row in rows.values():
        row[:] = 0
    views = tiling.views(rows)
    for tile in tiling.tiles:
        view = views.bits(tile.index)
        assert (view.size, 8 * view.itemsize) == (tile.count, tile.width)
        assert tile.count * tile.width // 8 <= TILE_BYTES
        view += 1
    assert all((row == 1).all() for row in rows.values())
    assert tiling.tiles.nbytes == checkpoint.nbytes


def test_cut_is_of_names_dtypes_and_shapes_alone(tmp_path: Path) -> None:
    def layout(where: str, shapes: dict[str, tuple[str, tuple[int, ...]]]) -> str:
        checkpoint = open_checkpoint(made(tmp_path / where, shapes))
        return checkpoint.tiling().tiles.layout

    first = layout("a", SHAPES)
    assert layout("b", dict(reversed(SHAPES.items()))) == first
    for name, other in [
        ("norm", ("I32", (5,))),
        ("norm", ("F32", (6,))),
        ("wide", ("I64", (4,))),
        ("wide", ("I64", (4, 1))),
        ("other", ("F32", (5,))),
    ]:
        shapes = {one: SHAPES[one] for one in SHAPES if one != "norm" or name != "other"}
        assert layout(f"{name}{other}", {**shapes, name: other}) != first


def test_what_is_changed_in_a_tile_is_in_the_file(tmp_path: Path) -> None:
    path = made(tmp_path)
    before = path.read_bytes()
    checkpoint = open_checkpoint(path)
    tiling = checkpoint.tiling()
    last = len(tiling.tiles) - 1
    with LiveTiles(checkpoint, tiling) as tiles:
        shadow, fresh = tiles.bits(last), tiles.bits(last)
        fresh[0] ^= 1
        tiles.apply(last, delta_pack(fresh, shadow), undo=False)
        tiles.flush()
    after = path.read_bytes()
    assert len(after) == len(before)
    assert sum(one != other for one, other in zip(before, after, strict=True)) == 1


def check_alike(tiles: LiveTiles, views: ShardViews, count: int) -> None:
    """Calls and views read the same, and what one changes the other reads."""
    for tile in range(count):
        before = tiles.bits(tile)
        assert before.dtype == views.bits(tile).dtype
        assert np.array_equal(before, views.bits(tile))
        shadow = before.copy()
        fresh = before.copy()
        fresh.reshape(-1)[-1] ^= 1
        delta = delta_pack(fresh, shadow)
        tiles.apply(tile, delta, undo=False)
        assert np.array_equal(fresh, views.bits(tile))
        assert tiles.digest(tile) == views.digest(tile)
        views.apply(tile, delta, undo=True)
        assert np.array_equal(before, tiles.bits(tile))


def test_tiles_are_read_and_written_by_calls_as_in_views(tmp_path: Path) -> None:
    path = made(tmp_path)
    checkpoint = open_checkpoint(path)
    tiling = checkpoint.tiling()
    with LiveTiles(checkpoint, tiling) as tiles:
        check_alike(tiles, tiling.views(mapped(path)), len(tiling.tiles))


@pytest.mark.parametrize("left", [0.0, 0.3, 0.999])
def test_a_file_that_is_cut_is_a_sentence(tmp_path: Path, left: float) -> None:
    path = made(tmp_path)
    checkpoint = open_checkpoint(path)
    tiling = checkpoint.tiling()
    with LiveTiles(checkpoint, tiling) as tiles:
        tiles.check()
        delta = delta_pack(*(np.array([one], np.uint16) for one in (1, 2)))
        os.truncate(path, int(left * path.stat().st_size))
        with pytest.raises(Unavailable, match="was shortened by another process"):
            tiles.check()
        size, cut = path.stat().st_size, 0
        for tile in range(len(tiling.tiles)):
            place = tiling.place(tile)
            (first,), (count,) = place.region.offset, place.region.shape
            stored = checkpoint.tensors[place.tensor].stored
            end = stored.begin + (first + count) * stored.stored.unit_bytes
            if end <= size:
                assert tiles.bits(tile).size == count
                continue
            cut += 1
            for call in (tiles.bits, tiles.digest, partial(tiles.apply, delta=delta, undo=False)):
                with pytest.raises(Unavailable, match="was shortened by another process"):
                    call(tile)
        assert cut > 0
        assert path.stat().st_size == size  # nothing was written behind its end


def test_links_and_files_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    path = made(tmp_path / "one")
    (tmp_path / "two").mkdir()
    os.link(path, tmp_path / "two" / path.name)
    checkpoint = open_checkpoint(tmp_path / "two")
    tiling = checkpoint.tiling()
    with pytest.raises(InvalidArgument, match="link"):
        LiveTiles(checkpoint, tiling)
    with pytest.raises(InvalidArgument, match="dtype"):
        create_checkpoint(tmp_path / "three", {"x": ("F99", (1,))})
    with pytest.raises(InvalidArgument, match="cannot make"):
        create_checkpoint(path / "below-a-file", SHAPES)


def test_checkpoint_is_cut_as_a_plan_says(tmp_path: Path) -> None:
    shapes = {"w": ("BF16", (8, 6)), "b": ("F32", (6,))}
    specs = {"w": TensorSpec("w", (8, 6), "bfloat16"), "b": TensorSpec("b", (6,), "float32")}

    def whole(rank: int) -> tuple[Piece, ...]:
        return (
            Piece("w", Region((0, 0), (8, 6)), rank, LocalView("w", 0, (6, 1))),
            Piece("b", Region((0,), (6,)), rank, LocalView("b", 0, (1,))),
        )

    columns = tuple(
        Piece("w", Region((0, 3 * rank), (8, 3)), rank, LocalView("w", 0, (3, 1)))
        for rank in (0, 1)
    ) + tuple(Piece("b", Region((0,), (6,)), rank, LocalView("b", 0, (1,))) for rank in (0, 1))
    plan = make_plan(
        SourceRanks("training", ShardMap(specs, whole(0), {})),
        [Replica("engine", "serving", ShardMap(specs, columns, {}))],
    )
    path = made(tmp_path, shapes)
    checkpoint, rows = open_checkpoint(path), mapped(path)
    stored = [one.stored for one in checkpoint.tensors.values()]
    tiling = planned_tiling(plan, stored)
    assert tiling.tiles.layout == plan.layout_id
    with LiveTiles(checkpoint, tiling) as tiles:
        check_alike(tiles, tiling.views(rows), len(tiling.tiles))
        matrix = rows["w"].reshape(8, 6)
        views = tiling.views(rows, plan.tiles_for("engine", 1))
        assert set(views.tiles) == set(plan.tiles_for("engine", 1)) < set(range(len(tiling.tiles)))
        for index in views.tiles:
            if plan.tiles[index].tensor == "w":
                assert np.shares_memory(views.bits(index), matrix[:, 3:])
                assert not np.shares_memory(views.bits(index), matrix[:, :3])
    with pytest.raises(InvalidArgument, match="shape"):
        planned_tiling(plan, [one for one in stored if one.name != "b"])
    other = open_checkpoint(made(tmp_path / "other", {**shapes, "w": ("F32", (8, 6))}))
    with pytest.raises(InvalidArgument, match="of the plan, got F32"):
        planned_tiling(plan, [one.stored for one in other.tensors.values()])
