"""Shard maps of tensors that are simply there, and of several ranks together."""

from collections.abc import Iterable, Mapping

import torch

from rose.engines.shards.look import Look
from rose.engines.shards.storages import dtype_of, look_of, storage_of
from rose.errors import InvalidArgument
from rose.transfer.codec.tensor import bits_of
from rose.transfer.plan import LocalView, Piece, Region, ShardMap, TensorSpec, check_coverage


def shard_map_of(named: Mapping[str, torch.Tensor], *, rank: int = 0) -> ShardMap:
    """Return the map of a rank that holds whole tensors, wherever they lie.

    Views keep their strides. Names of one storage are tied: the pieces of both look into the
    parameter that is named first. A tensor without elements has no piece.

    Args:
        named: by canonical name; the parameters of pieces are the same names.
        rank: of the pieces.

    Raises:
        InvalidArgument: two tensors overlap and are not the same, two elements of one may lie in
            one place, or one has no memory that a delta could change.
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
    """Return the piece of a rank that holds all of a tensor."""
    region = Region((0,) * len(held.shape), held.shape)
    return Piece(name, region, rank, LocalView(parameter, held.offset, held.strides))


def joined(maps: Iterable[ShardMap]) -> ShardMap:
    """Return the map of a group of which each map says a part, such as one rank each.

    What is computed on one rank counts as computed on all: the pieces of others are left out, so
    that every rank of the group gets such a tensor in the same way.

    Raises:
        InvalidArgument: two maps say something else of a tensor.
    """
    maps = tuple(maps)
    tensors: dict[str, TensorSpec] = {}
    computed: dict[str, str] = {}
    for one in maps:
        computed = {**one.computed, **computed}
        for name, spec in one.tensors.items():
            if tensors.setdefault(name, spec) != spec:
                raise InvalidArgument(
                    f"{name} is {_words(tensors[name])} on one rank and {_words(spec)} on another"
                )
    pieces = dict.fromkeys(piece for one in maps for piece in one.pieces)
    held = tuple(piece for piece in pieces if piece.tensor not in computed)
    return ShardMap(tensors, held, computed)


def _words(spec: TensorSpec) -> str:
    return f"{spec.dtype} of shape {spec.shape}"


def _check(name: str, tensor: torch.Tensor) -> None:
    """Refuse what lies nowhere, or in one place twice."""
    if tensor.device.type == "meta":
        raise InvalidArgument(f"{name} is on the device meta, and has no elements")
    bits_of(name, tensor, is_written=True)
