"""Shard maps of whole tensors."""

from collections.abc import Mapping

import torch

from rose.engines.shards.look import Look
from rose.engines.shards.storages import dtype_of, look_of, storage_of
from rose.errors import InvalidArgument
from rose.transfer.codec.tensor import bits_of
from rose.transfer.plan import LocalView, Piece, Region, ShardMap, TensorSpec, check_coverage


def shard_map_of(named: Mapping[str, torch.Tensor], *, rank: int = 0) -> ShardMap:
    """Return the map of a rank that holds whole tensors.

    Views keep their strides. Names that share a storage are tied: their pieces use the parameter
    that is named first. A tensor without elements has no piece.

    Args:
        named: tensors by canonical name; pieces use the same names for parameters.
        rank: rank of the pieces.

    Raises:
        InvalidArgument: two tensors overlap partly, a tensor may have two elements at one address,
            or a tensor has no memory that a delta could change.
    """
    for name, tensor in named.items():
        _check(name, tensor)
    first: dict[int, str] = {}
    pieces = [
        whole(name, look_of(tensor), first.setdefault(storage_of(tensor), name), rank=rank)
        for name, tensor in named.items()
        if tensor.numel()
    ]
    specs = {name: TensorSpec(name, tuple(one.shape), dtype_of(one)) for name, one in named.items()}
    made = ShardMap(specs, tuple(pieces), {})
    check_coverage(made)
    return made


def whole(name: str, held: Look, parameter: str, *, rank: int) -> Piece:
    """Return the piece of a rank that holds a whole tensor."""
    region = Region((0,) * len(held.shape), held.shape)
    return Piece(name, region, rank, LocalView(parameter, held.offset, held.strides))


def _check(name: str, tensor: torch.Tensor) -> None:
    """Refuse tensors without memory, and those with two elements at one address."""
    if tensor.device.type == "meta":
        raise InvalidArgument(f"{name} is on the device meta, without elements: load it first")
    bits_of(name, tensor, is_written=True)
