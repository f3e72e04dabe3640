"""Tensors that are spread over a mesh: every rank's part, from placements alone."""

import itertools
import json
import math
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rose.engines.shards.dtensors import shard_map_of_dtensors
from rose.engines.shards.placements import Replicate, Shard, StridedShard, pieces_of_placements
from rose.errors import InvalidArgument

ROOT = Path(__file__).resolve().parents[3]
WORLD = 4
DEADLINE_S = 240
pytestmark = pytest.mark.timeout(600)  # four ranks of torch, on a machine that may be busy


def local_of(whole: torch.Tensor, mesh_shape, placements, at) -> torch.Tensor:
    """Return what one rank holds: torch cuts, placement by placement."""
    local = whole
    for placement, parts, index in zip(placements, mesh_shape, at, strict=True):
        if isinstance(placement, Replicate):
            continue
        dim = placement.dim
        split = placement.split_factor if isinstance(placement, StridedShard) else 1
        nothing = local.narrow(dim, 0, 0)
        kept = []
        for chunk in local.chunk(split, dim):
            mine = chunk.chunk(parts, dim) if chunk.shape[dim] else ()
            kept.append(mine[index] if index < len(mine) else nothing)
        local = torch.cat(kept, dim)
    return local.contiguous()


def poured(pieces, whole: torch.Tensor, count: int) -> torch.Tensor:
    room = torch.full((count,), -1, dtype=whole.dtype)
    for piece in pieces:
        ends = zip(piece.region.offset, piece.region.shape, strict=True)
        box = whole[tuple(slice(at, at + size) for at, size in ends)]
        room.as_strided(piece.region.shape, piece.view.strides, piece.view.offset).copy_(box)
    return room


@st.composite
def spreads(draw):
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    mesh = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    dims = st.integers(0, len(shape) - 1)
    one = st.one_of(
        st.just(Replicate()),
        st.builds(Shard, dims),
        st.builds(StridedShard, dims, st.integers(1, 4)),
    )
    return shape, mesh, [draw(one) for _ in mesh]


@given(spreads())
def test_pieces_are_what_chunks_of_chunks_are(spread) -> None:
    shape, mesh, placements = spread
    whole = torch.arange(math.prod(shape)).view(shape)
    pieces = pieces_of_placements("t", shape, mesh, placements)
    for rank, at in enumerate(itertools.product(*map(range, mesh))):
        local = local_of(whole, mesh, placements, at)
        mine = [piece for piece in pieces if piece.rank == rank]
        assert torch.equal(poured(mine, whole, local.numel()), local.flatten())
        assert sum(piece.region.count for piece in mine) == local.numel()


@pytest.mark.parametrize(
    ("placements", "ranks", "words"),
    [
        ([Shard(0)], None, "1 placements"),
        ([Shard(0), Replicate()], [0, 1], "2 ranks"),
        ([Shard(2), Replicate()], None, "must be sharded along one of its 2 dimensions, got 2"),
        ([StridedShard(0, 0), Replicate()], None, "must be at least 1, got 0"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(placements, ranks, words) -> None:
    with pytest.raises(InvalidArgument, match=words):
        pieces_of_placements("t", (4, 4), (2, 2), placements, ranks=ranks)


# ---- against torch, in processes that take it a quarter of a minute -----------------------------


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    """Return what each of four ranks says of itself, and the map it made for all."""
    folder = tmp_path_factory.mktemp("ranks")
    program = [sys.executable, "-m", "tests.engines.shards.ranks", str(folder)]
    # Ranks are children of the program: they end with its session.
    ranks = subprocess.Popen(program, cwd=ROOT, stderr=subprocess.PIPE, start_new_session=True)
    try:
        said = ranks.communicate(timeout=DEADLINE_S)[1]
    finally:
        with suppress(ProcessLookupError):
            os.killpg(ranks.pid, signal.SIGKILL)
        ranks.wait()
    assert ranks.returncode == 0, said.decode()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(WORLD)]


@pytest.mark.slow
def test_map_of_one_rank_says_what_torch_holds_on_each(held) -> None:
    for rank, one in enumerate(held):
        for name, tensor in one["tensors"].items():
            mine = [piece for piece in held[0]["pieces"] if piece[:2] == [name, rank]]
            local = np.full(max(1, len(tensor["local"])), -1.0, np.float32)
            size = local.itemsize
            for _, _, offset, shape, _, at, strides in mine:
                whole_shape = _whole_shape(held, name)
                numbers = np.arange(math.prod(whole_shape)).reshape(whole_shape)
                box = numbers[tuple(slice(a, a + n) for a, n in zip(offset, shape, strict=True))]
                to = np.lib.stride_tricks.as_strided(
                    local[at:], shape, [size * step for step in strides]
                )
                to[...] = box
            assert local[: len(tensor["local"])].tolist() == tensor["local"], (name, rank)
            if mine:
                assert [min(p[2][d] for p in mine) for d in range(len(mine[0][2]))] == tensor[
                    "offset"
                ]
            else:
                assert math.prod(tensor["shape"]) == 0


def _whole_shape(held, name: str) -> list[int]:
    pieces = [piece for piece in held[0]["pieces"] if piece[0] == name]
    return [max(p[2][d] + p[3][d] for p in pieces) for d in range(len(pieces[0][2]))]


@pytest.mark.slow
def test_strided_and_tied_tensors_were_among_them(held) -> None:
    placements = held[0]["tensors"]["up.weight"]["placements"]
    assert any("Strided" in one or "_S" in one for one in placements), placements
    assert sorted(piece[1] for piece in held[0]["pieces"] if piece[0] == "plain") == [0, 1, 2, 3]
    (embed, *_), (head, *_) = (
        [piece for piece in held[0]["pieces"] if piece[0] == name]
        for name in ("embed.weight", "head.weight")
    )
    assert embed[4] == head[4] == "embed.weight"


# ---- what is refused ----------------------------------------------------------------------------


class Spread:
    """What is asked of a DTensor, with a local tensor that may be anything."""

    def __init__(self, local, shape, placements) -> None:
        self.local, self.shape, self.placements = local, shape, placements
        self.dtype = local.dtype
        self.device_mesh = self
        self.mesh = torch.arange(2)

    def to_local(self):
        return self.local


class Cut:
    def __init__(self, kind: str, dim: int = 0) -> None:
        self.kind, self.dim = kind, dim

    def is_shard(self) -> bool:
        return self.kind == "shard"

    def is_replicate(self) -> bool:
        return self.kind == "replicate"

    def __repr__(self) -> str:
        return self.kind


@pytest.mark.parametrize(
    ("local", "kind", "words"),
    [
        (torch.zeros(2, 3), "partial", "of t, whose placement is partial: redistribute"),
        (torch.zeros(3, 3), "shard", r"local shape \(2, 3\), got \(3, 3\)"),
        (torch.zeros(3, 2).t(), "shard", "unknown to other ranks"),
        (torch.zeros(3, 3)[1:], "shard", "offset 3"),
    ],
)
def test_local_tensor_that_is_not_what_placements_say_is_refused(local, kind, words) -> None:
    with pytest.raises(InvalidArgument, match=words):
        shard_map_of_dtensors({"t": Spread(local, (4, 3), [Cut(kind)])}, rank=0)


class Mesh:
    def __init__(self, *shape: int, names: tuple[str, ...] | None = None) -> None:
        self.mesh = torch.arange(math.prod(shape)).view(shape) + 3
        self.mesh_dim_names = names


def test_plain_tensor_is_held_by_all_ranks_of_the_mesh() -> None:
    for mesh in (Mesh(2, names=("dp",)), Mesh(2)):
        shards = shard_map_of_dtensors({"t": torch.zeros(2, 3)}, rank=4, mesh=mesh)
        assert [(one.rank, one.region.count) for one in shards.pieces] == [(3, 6), (4, 6)]
    with pytest.raises(InvalidArgument, match="t is not a DTensor"):
        shard_map_of_dtensors({"t": torch.zeros(2, 3)}, rank=0)


def test_tensor_on_another_mesh_is_refused() -> None:
    spread = Spread(torch.zeros(2, 3), (4, 3), [Cut("shard")])
    spread.mesh_dim_names = ("ep",)
    with pytest.raises(InvalidArgument, match="not a part of"):
        shard_map_of_dtensors({"t": spread}, rank=3, mesh=Mesh(2, 2, names=("dp", "tp")))
