"""Transfer time of a weight update, from the planner that also plans real transfers.

All layers are cut alike, so each matrix is planned once; its bytes are multiplied by its copies.
Packing is left out, since it takes milliseconds on the training GPUs.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Final

from rose.errors import InvalidArgument
from rose.memory.model_shape import ModelShape
from rose.memory.model_weights import Matrix, Split, matrices, weight_bytes
from rose.memory.presets import find_model
from rose.slo.prior import find_roofline
from rose.transfer.plan import (
    LocalView,
    Piece,
    Region,
    RelayNode,
    Replica,
    ShardMap,
    SourceRanks,
    TensorSpec,
    make_plan,
)
from rose.units import MS_PER_S
from rose_lab.sim.plan_traffic import traffic
from rose_lab.sim.scenario.parts import Network

_TRAINING: Final = "training"
_SERVING: Final = "serving"
_ELEMENT_BYTES: Final = 2
_SECTOR_ELEMENTS: Final = 16  # memory reads and writes 32 bytes at a time
_BYTES_PER_GBIT: Final = 1e9 / 8
_RELAYS: Final = 1  # in the serving cluster
_LOCAL_GBIT_PER_S: Final = 400.0  # inside a cluster, per GPU
# Bytes per change on the wire, measured on a trained model: see bench/results.
_DELTA_BYTES: Final = 1.05
# COO: an int32 position per bf16 value.
_COO_BYTES: Final = 6.0
# Time that the paper's receivers need to rebuild the weights from old weights and changes.
_REBUILD_MS: Final = 1000.0


class UpdateScheme(Enum):
    """Transport of weights to rollout engines."""

    DELTA = "changes cross once, are staged while turns run, and are committed in milliseconds"
    COO = "changes cross once, as positions and values; engines stop to rebuild the weights"
    DENSE = "all weights cross for each engine, which stops to load them"


@dataclass(frozen=True, slots=True)
class UpdateTime:
    """Times of an update for one engine.

    Args:
        update_ms: time from publication to commit, while the engine keeps running.
        pause_ms: pause of the engine.
    """

    update_ms: float
    pause_ms: float


@dataclass(frozen=True, slots=True)
class UpdateBytes:
    """Elements moved by an update of all elements.

    Args:
        crossing: elements over the link between the clusters.
        relayed: elements sent by the busiest relay.
        received: elements received by the busiest GPU of an engine.
    """

    crossing: int
    relayed: int
    received: int


def update_time(
    model: str,
    *,
    gpu: str,
    tp: int,
    engines: int,
    trainer_tp: int,
    is_far: bool,
    network: Network,
    scheme: UpdateScheme,
) -> UpdateTime:
    """Return the update time of engines of one kind, which receive the update together.

    Args:
        model: model that learns.
        gpu: kind of GPU of an engine.
        tp: GPUs per engine.
        engines: number of engines that share the link, or the trainer's cluster; the average number
            if engines come and go.
        trainer_tp: GPUs that share a layer in training.
        is_far: whether the slow link is between trainer and engines.
        network: rates, and the changed share.
        scheme: transport of weights.

    Raises:
        InvalidArgument: the model cannot be divided among the GPUs.
    """
    relays = 0 if scheme is UpdateScheme.DENSE or not is_far else _RELAYS
    moved = update_elements(model, tp=tp, engines=engines, trainer_tp=trainer_tp, relays=relays)
    element_bytes = _wire_bytes(scheme, network)
    far_ms = _milliseconds(moved.crossing * element_bytes, network.link_gbit_per_s)
    # In the trainer's cluster a broadcast passes from engine to engine: each byte arrives once.
    inside = max(moved.relayed / max(1, relays), moved.received) if is_far else moved.received
    near_ms = _milliseconds(inside * element_bytes, _LOCAL_GBIT_PER_S)
    # Tiles are forwarded as they arrive: the slower of the two rates decides.
    update_ms = max(far_ms, near_ms) if is_far else near_ms
    commit_ms = _commit_ms(model, gpu, tp, network)
    if scheme is UpdateScheme.DELTA:
        return UpdateTime(update_ms, commit_ms)
    if scheme is UpdateScheme.COO:
        return UpdateTime(update_ms, _REBUILD_MS)
    load_ms = _milliseconds(moved.received * element_bytes, _LOCAL_GBIT_PER_S)
    return UpdateTime(max(0.0, update_ms - load_ms), load_ms)


@lru_cache(maxsize=256)
def update_elements(
    model: str, *, tp: int, engines: int, trainer_tp: int, relays: int
) -> UpdateBytes:
    """Return the elements moved by a full update, according to the transfer plan.

    Args:
        model: a preset, or the path of a config.json.
        tp: GPUs per engine.
        engines: number of receiving engines, > 0.
        trainer_tp: GPUs of the trainer that share a layer.
        relays: number of relays in the engines' cluster.
    """
    shape = find_model(model)
    named = {f"{at}": matrix for at, matrix in enumerate(matrices(shape)) if matrix.copies}
    # Engines are alike. A relay distributes to all; without a relay, data crosses once per engine.
    replica = Replica("engine", _SERVING, _shards(named, tp))
    plan = make_plan(
        SourceRanks(_TRAINING, _shards(named, trainer_tp)),
        [replica],
        [RelayNode(f"relay{at}", _SERVING) for at in range(min(1, relays))],
    )
    sizes = [tile.count * named[tile.tensor].copies for tile in plan.tiles]
    moved = traffic(plan, sizes)
    copies = 1 if relays else engines
    return UpdateBytes(
        crossing=copies * sum(moved.crossing.values()),
        relayed=engines * sum(moved.relayed.values()),
        received=max(moved.received.values()),
    )


def _shards(named: dict[str, Matrix], ranks: int) -> ShardMap:
    tensors = {
        name: TensorSpec(name, (matrix.rows, matrix.columns), "bfloat16")
        for name, matrix in named.items()
    }
    pieces = tuple(
        Piece(name, region, rank, LocalView(name, 0, (region.shape[1], 1)))
        for name, matrix in named.items()
        for rank, region in _cut(matrix, ranks)
    )
    return ShardMap(tensors, pieces, {})


def _cut(matrix: Matrix, ranks: int) -> Iterator[tuple[int, Region]]:
    """Yield each rank's part, cut as in engines and Megatron; KV heads are not divided."""
    parts = ranks if matrix.ways is None else min(ranks, matrix.ways)
    for rank in range(ranks):
        offset, shape = [0, 0], [matrix.rows, matrix.columns]
        if matrix.split is not Split.ALL:
            dimension = 0 if matrix.split is Split.ROWS else 1
            part = rank * parts // ranks
            first, last = (shape[dimension] * one // parts for one in (part, part + 1))
            if first == last:
                raise InvalidArgument(f"a matrix of {shape} cannot be divided among {ranks} GPUs")
            offset[dimension], shape[dimension] = first, last - first
        yield rank, Region((offset[0], offset[1]), (shape[0], shape[1]))


def _wire_bytes(scheme: UpdateScheme, network: Network) -> float:
    """Return the average bytes on the wire per element of the model."""
    per_change = {
        UpdateScheme.DELTA: _DELTA_BYTES,
        UpdateScheme.COO: _COO_BYTES,
        UpdateScheme.DENSE: math.inf,
    }[scheme]
    if scheme is UpdateScheme.DENSE:
        return float(_ELEMENT_BYTES)
    return min(float(_ELEMENT_BYTES), network.changed_share * per_change)


def _commit_ms(model: str, gpu: str, tp: int, network: Network) -> float:
    """Return a commit's pause: all weights are read for the digest, changed sectors rewritten."""
    touched = 1 - (1 - network.changed_share) ** _SECTOR_ELEMENTS
    shape: ModelShape = find_model(model)
    moved = weight_bytes(shape, tp=tp) * (1 + 2 * touched)
    return MS_PER_S * moved / find_roofline(gpu).bytes_per_s


def _milliseconds(nbytes: float, gbit_per_s: float) -> float:
    return MS_PER_S * nbytes / (gbit_per_s * _BYTES_PER_GBIT)
