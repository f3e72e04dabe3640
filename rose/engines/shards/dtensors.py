"""Shard maps of trainers with DTensors, such as FSDP2."""

from collections.abc import Mapping
from typing import Any

import torch

from rose.engines.shards.placements import (
    Placement,
    Replicate,
    Shard,
    StridedShard,
    local_shape,
    pieces_of_placements,
)
from rose.engines.shards.storages import dtype_of, look_of, storage_of
from rose.errors import InvalidArgument
from rose.transfer.plan import Piece, ShardMap, TensorSpec


def shard_map_of_dtensors(named: Mapping[str, Any], *, rank: int, mesh: Any = None) -> ShardMap:
    """Return the map of all ranks of a trainer, computed from the tensors of one rank.

    The pieces refer to local tensors: pass `{name: one.to_local()}` to `views_of`. Names that share
    a storage are tied, as in `shard_map_of`.

    Args:
        named: DTensors and plain tensors, by canonical name.
        rank: rank of the caller.
        mesh: DeviceMesh of all ranks, with dimension names. A tensor that is distributed along only
            some of the mesh's dimensions is replicated along the others, as when FSDP2 wraps
            modules without TP; plain tensors are replicated everywhere. None: the map has only the
            ranks of each tensor's own mesh.

    Raises:
        InvalidArgument: a tensor is a partial sum, does not match its placements, does not start at
            its storage's first element, or is plain and there is no mesh.
    """
    first: dict[int, str] = {}
    specs: dict[str, TensorSpec] = {}
    pieces: list[Piece] = []
    for name, tensor in named.items():
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        parameter = first.setdefault(storage_of(local), name)
        specs[name] = TensorSpec(name, tuple(tensor.shape), dtype_of(tensor))
        spread = _spread(name, tensor, parameter, mesh)
        _check_local(name, local, [piece for piece in spread if piece.rank == rank])
        pieces += spread
    return ShardMap(specs, tuple(pieces), {})


def _spread(name: str, tensor: Any, parameter: str, mesh: Any) -> tuple[Piece, ...]:
    """Return the pieces of one tensor."""
    own: Any = getattr(tensor, "device_mesh", None)
    if own is None and mesh is None:
        raise InvalidArgument(f"{name} is not a DTensor: pass the mesh of the ranks that hold it")
    placements: list[Placement] = []
    if own is not None:
        placements = [_placement(name, one) for one in tensor.placements]
    if mesh is not None and own != mesh:
        placements = _extended(name, placements, own, mesh)
    ranks = (own if mesh is None else mesh).mesh
    return pieces_of_placements(
        name,
        tuple(tensor.shape),
        tuple(ranks.shape),
        placements,
        ranks=ranks.flatten().tolist(),
        parameter=parameter,
    )


def _extended(name: str, placements: list[Placement], own: Any, mesh: Any) -> list[Placement]:
    """Return placements for all dimensions of `mesh`, from those for the dimensions of `own`."""
    names = (own.mesh_dim_names or ("",)) if own is not None else ()
    every = mesh.mesh_dim_names or ()
    if [one for one in every if one in names] != list(names):
        raise InvalidArgument(
            f"{name} is on a mesh of dimensions {names}, which is not a part of {every}: pass the "
            "mesh of all ranks"
        )
    placed = dict(zip(names, placements, strict=True))
    return [placed.get(one, Replicate()) for one in every or [""] * mesh.mesh.ndim]


def _placement(name: str, placement: Any) -> Placement:
    """Convert a placement of torch, which has no public name for its strided shard."""
    if (split_factor := getattr(placement, "split_factor", None)) is not None:
        return StridedShard(placement.dim, int(split_factor))
    if placement.is_shard():
        return Shard(placement.dim)
    if placement.is_replicate():
        return Replicate()
    raise InvalidArgument(
        f"no rank holds the elements of {name}, whose placement is {placement}: redistribute it to "
        "Shard or Replicate"
    )


def _check_local(name: str, local: torch.Tensor, pieces: list[Piece]) -> None:
    """Compare the local tensor with its placements; tensors of other ranks are not checked."""
    expected = local_shape(pieces)
    if (expected or (0,)) != tuple(local.shape) and (expected or local.numel()):
        raise InvalidArgument(
            f"{name} must have the local shape {expected}, got {tuple(local.shape)}"
        )
    if local.numel() and (not local.is_contiguous() or look_of(local).offset):
        raise InvalidArgument(
            f"{name} is a view of another tensor (offset {look_of(local).offset}, strides "
            f"{tuple(local.stride())}), which is unknown to other ranks: call shard_map_of on each "
            "rank"
        )
