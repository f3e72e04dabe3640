"""What a shard map says, done: the elements of a checkpoint poured into the memory of a rank."""

from collections.abc import Iterable, Mapping

import torch

from rose.engines.shards.storages import parameters_of
from rose.transfer.plan import ShardMap, TensorSpec


def specs_of(tensors: Mapping[str, torch.Tensor]) -> list[TensorSpec]:
    return [
        TensorSpec(name, tuple(one.shape), str(one.dtype).removeprefix("torch."))
        for name, one in tensors.items()
    ]


def random_like(specs: Iterable[TensorSpec], *, seed: int) -> dict[str, torch.Tensor]:
    source = torch.Generator().manual_seed(seed)
    return {
        spec.name: torch.randn(spec.shape, generator=source).to(getattr(torch, spec.dtype))
        for spec in specs
    }


def storage_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the whole storage of a tensor as bytes that share its memory."""
    empty = torch.empty(0, dtype=torch.uint8)
    return empty.set_(tensor.detach().untyped_storage())


def bytes_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return a copy of every storage of a model, by parameter."""
    return {name: storage_bytes(one).clone() for name, one in parameters_of(model).items()}


def pour(
    shards: ShardMap, tensors: Mapping[str, torch.Tensor], model: torch.nn.Module, *, rank: int = 0
) -> None:
    """Copy what a rank holds of a checkpoint to where a map says that it lies."""
    parameters = parameters_of(model)
    for piece in shards.pieces:
        if piece.rank != rank:
            continue
        region, view = piece.region, piece.view
        ends = zip(region.offset, region.shape, strict=True)
        box = tensors[piece.tensor][tuple(slice(at, at + size) for at, size in ends)]
        to = parameters[view.parameter].detach()
        assert to.dtype == box.dtype
        to.as_strided(region.shape, view.strides, view.offset).copy_(box)
