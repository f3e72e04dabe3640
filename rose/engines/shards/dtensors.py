"""Shard maps of trainers whose tensors know how they are spread: FSDP2, and DTensor in general."""

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
    """Return the map of all ranks of a trainer, from what one of them knows.

    The parameters of pieces are local tensors: pass `{name: one.to_local()}` to `views_of`. Names
    of one storage are tied, as in `shard_map_of`.

    Args:
        named: DTensors by canonical name, and plain tensors.
        rank: who calls.
        mesh: the DeviceMesh of all ranks, with names of its dimensions. Tensors on a part of its
            dimensions are the same along the others, as they are where FSDP2 wraps what TP left
            alone; plain ones are the same everywhere. Without it, only the ranks of a tensor's own
            mesh are in the map.

    Raises:
        InvalidArgument: a tensor is a partial sum, is not spread as its placements say, does not
            lie in its storage from the first element on, or is plain and there is no mesh.
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
        raise InvalidArgument(f"{name} is no DTensor: pass the mesh of the ranks that hold it")
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
    """Return placements for all dimensions of a mesh, from those of a part of them."""
    names = (own.mesh_dim_names or ("",)) if own is not None else ()
    every = mesh.mesh_dim_names or ()
    if [one for one in every if one in names] != list(names):
        raise InvalidArgument(
            f"{name} is on a mesh of dimensions {names}, which is no part of {every}"
        )
    placed = dict(zip(names, placements, strict=True))
    return [placed.get(one, Replicate()) for one in every or [""] * mesh.mesh.ndim]


def _placement(name: str, placement: Any) -> Placement:
    """Return a placement of torch in our words; the strided one has no public name there."""
    if (split_factor := getattr(placement, "split_factor", None)) is not None:
        return StridedShard(placement.dim, int(split_factor))
    if placement.is_shard():
        return Shard(placement.dim)
    if placement.is_replicate():
        return Replicate()
    raise InvalidArgument(f"{name} is {placement}: redistribute it, nobody holds its elements")


def _check_local(name: str, local: torch.Tensor, pieces: list[Piece]) -> None:
    """Compare what is there with what the placements say; for other ranks they must do."""
    said = local_shape(pieces)
    if (said or (0,)) != tuple(local.shape) and (said or local.numel()):
        raise InvalidArgument(
            f"{name} should have the local shape {said}, and has {tuple(local.shape)}"
        )
    if local.numel() and (not local.is_contiguous() or look_of(local).offset):
        raise InvalidArgument(
            f"{name} lies at element {look_of(local).offset} of a storage with the strides "
            f"{tuple(local.stride())}, and other ranks cannot know: let each call shard_map_of"
        )
