"""A small model on a trainer, on a replica of two ranks that split columns, and on one of one."""

import numpy as np
import numpy.typing as npt

from rose.transfer.plan import (
    LocalView,
    Piece,
    Plan,
    Region,
    Replica,
    ShardMap,
    Source,
    TensorSpec,
    make_plan,
)

Bits = npt.NDArray[np.uint16]
# The last one is on every rank as a whole.
SHAPES = {"up": (40, 64), "down": (24, 48), "norm": (30,)}
SPLIT = ("up", "down")
PAIR, SINGLE = "pair", "single"


def _piece(name: str, rank: int, ranks: int) -> Piece:
    shape = SHAPES[name]
    if name not in SPLIT:
        return Piece(name, Region((0,), shape), rank, LocalView(name, 0, (1,)))
    rows, columns = shape[0], shape[1] // ranks
    region = Region((0, rank * columns), (rows, columns))
    return Piece(name, region, rank, LocalView(name, 0, (columns, 1)))


def shard_map(ranks: int) -> ShardMap:
    """Return who holds what when columns are split over so many ranks."""
    tensors = {name: TensorSpec(name, shape, "bfloat16") for name, shape in SHAPES.items()}
    pieces = tuple(_piece(name, rank, ranks) for rank in range(ranks) for name in SHAPES)
    return ShardMap(tensors, pieces, {})


def plan(trainers: int = 1) -> Plan:
    """Return the plan from so many ranks of a trainer, each of which sends what it has."""
    return make_plan(
        Source("training", shard_map(trainers)),
        [Replica(PAIR, "serving", shard_map(2)), Replica(SINGLE, "serving", shard_map(1))],
        tile_elements=256,
    )


def model(n: int) -> dict[str, Bits]:
    """Return what the trainer has as version `n`: each a few changes after the one before."""
    rng = np.random.default_rng(5)
    made = {
        name: rng.integers(0, 1 << 16, shape).astype(np.uint16) for name, shape in SHAPES.items()
    }
    for step in range(1, n + 1):
        rng = np.random.default_rng(1000 + step)
        for bits in made.values():
            bits[rng.random(bits.shape) < 0.04] ^= np.uint16(step % 7 + 1)
    return made


def shard(tensors: dict[str, Bits], rank: int, ranks: int) -> dict[str, Bits]:
    """Return a rank's own memory: contiguous copies of its columns."""
    made = {}
    for name, bits in tensors.items():
        piece = _piece(name, rank, ranks)
        box = tuple(
            slice(at, at + size)
            for at, size in zip(piece.region.offset, piece.region.shape, strict=True)
        )
        made[name] = np.ascontiguousarray(bits[box])
    return made


def view(memory: dict[str, Bits], where: LocalView, shape: tuple[int, ...]) -> Bits:
    """Return a place of a plan in a rank's memory."""
    flat = memory[where.parameter].reshape(-1)
    strides = [2 * stride for stride in where.strides]
    return np.lib.stride_tricks.as_strided(flat[where.offset :], shape, strides)


def places(plan: Plan, replica: str, rank: int, memory: dict[str, Bits]) -> dict:
    """Return every tile of a rank, as views of its memory."""
    return {
        tile: tuple(view(memory, one, plan.tiles[tile].region.shape) for one in where)
        for tile, where in plan.places(replica, rank).items()
    }


def source_places(plan: Plan, memory: dict[str, Bits], rank: int = 0) -> dict:
    """Return every tile that a rank of the trainer sends, as views of its memory."""
    return {
        tile: (view(memory, where, plan.tiles[tile].region.shape),)
        for tile, where in plan.sent_from(rank).items()
    }
