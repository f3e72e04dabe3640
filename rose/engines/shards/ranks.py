"""One rank of a sharded trainer or engine, as `rose.transfer.sharded` sees it: torch's side."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import nn
from typing_extensions import Self

from rose.engines.shards.computed import ComputedTensors
from rose.engines.shards.dtensors import shard_map_of_dtensors
from rose.engines.shards.places import views_of
from rose.engines.shards.plain import shard_map_of
from rose.engines.shards.storages import parameters_of
from rose.engines.shards.trace import Loader, trace_loader
from rose.errors import InvalidArgument
from rose.transfer.named import check_whole
from rose.transfer.plan import Places, ShardMap, TensorSpec
from rose.transfer.plan.files import ShardFile
from rose.transfer.sharded.shards import Shards
from rose.transfer.tiles import ShardViews

# A model, or its tensors by name.
Weights: TypeAlias = nn.Module | Mapping[str, torch.Tensor]


class TrainerRank:
    """A trainer rank's part of the weights: DTensors, and plain tensors that every rank holds.

    Args:
        weights: a model, or tensors by name.
        shards: the rank.
    """

    def __init__(self, weights: Weights, shards: Shards) -> None:
        named = _named(weights)
        self._locals = {name: _local(one) for name, one in named.items()}
        self.shards = _own_map(named, shards)

    def views(self, places: Places) -> ShardViews:
        """Return tiles as views of the local tensors."""
        return ShardViews(views_of(self._locals, places))

    def copy(self) -> Self:
        """Return a copy with memory of its own."""
        made = object.__new__(type(self))
        made.shards = self.shards
        used = {piece.view.parameter for piece in self.shards.pieces}
        made._locals = {name: _cloned(one) for name, one in self._locals.items() if name in used}
        return made


class EngineRank:
    """An engine rank's memory: parameters, and host copies of tensors that its loader computes.

    Args:
        model: a model, or its tensors by name.
        shards: the rank.
        specs: tensors of the trainer.

    Raises:
        InvalidArgument: the tensors do not fit the trainer's.
    """

    def __init__(self, model: Weights, shards: Shards, specs: Sequence[TensorSpec]) -> None:
        self._hosts: ComputedTensors | None = None
        self._names: dict[int, str] = {}  # parameter of each tile
        self._model, self._is_traced = model, shards.load_weights is not None
        self._at = {name: _address(one) for name, one in self._present().items()}
        if shards.load_weights is not None:
            self._trace(model, shards.load_weights, specs, shards.rank)
            return
        named = _named(model)
        self._memory = {name: _local(one) for name, one in named.items()}
        self.file = ShardFile(_own_map(named, shards))

    def _trace(
        self, model: Weights, load_weights: Loader, specs: Sequence[TensorSpec], rank: int
    ) -> None:
        if not isinstance(model, nn.Module):
            raise InvalidArgument("load_weights= needs the model whose parameters it writes")
        traced = trace_loader(model, load_weights, specs, rank=rank)
        self._memory = parameters_of(model)
        shards, sizes = traced.shards, dict(traced.storages)
        if traced.shards.computed:
            zeros = {
                spec.name: torch.zeros(spec.shape, dtype=getattr(torch, spec.dtype))
                for spec in specs
                if spec.name in traced.shards.computed
            }
            self._hosts = hosts = ComputedTensors(model, load_weights, zeros, ends=traced.ends)
            self._memory |= hosts.parameters
            pieces = (*shards.pieces, *hosts.pieces(rank))
            shards = ShardMap(shards.tensors, pieces, {})
            sizes |= hosts.storages(rank)
        held = tuple((*at, size) for at, size in sizes.items())
        self.file = ShardFile(shards, storages=held, buffers=tuple(sorted(traced.excused)))

    def views(self, places: Places) -> ShardViews:
        """Return tiles as views of the memory."""
        self._names = {tile: row[0][0].parameter for tile, row in places.items()}
        return ShardViews(views_of(self._memory, places))

    def name_of(self, tile: int) -> str:
        """Return the parameter in which a tile is."""
        return self._names[tile]

    def check(self) -> None:
        """Check that the model still has its tensors where they were.

        Raises:
            InvalidArgument: a tensor has moved; the message names it.
        """
        now = self._present()
        moved = [
            name for name, at in self._at.items() if name not in now or _address(now[name]) != at
        ]
        if moved:
            more = f" and {len(moved) - 1} more" if len(moved) > 1 else ""
            raise InvalidArgument(
                f"{moved[0]}{more} moved to other memory since rose.receive was called: call it "
                "again with the present tensors"
            )

    def _present(self) -> Mapping[str, torch.Tensor]:
        model = self._model
        if self._is_traced and isinstance(model, nn.Module):
            return parameters_of(model)
        return _named(model)

    def load(self, tiles: Iterable[int]) -> None:
        """Pass the changed host copies to the loader."""
        if self._hosts is None:
            return
        names = self._hosts.names
        changed = {names[one] for tile in tiles if (one := self._names[tile]) in names}
        if changed:
            self._hosts.load(changed)

    def undo(self) -> None:
        """Restore what the last `load` wrote."""
        if self._hosts is not None:
            self._hosts.undo()

    def settle(self) -> None:
        """Make the last `load` final."""
        if self._hosts is not None:
            self._hosts.settle()


def _named(weights: Weights) -> dict[str, torch.Tensor]:
    return dict(weights.state_dict() if isinstance(weights, nn.Module) else weights)


def _own_map(named: Mapping[str, torch.Tensor], shards: Shards) -> ShardMap:
    """Return the map of one rank; without a layout plain tensors count as whole."""
    rank, layout = shards.rank, shards.layout
    if layout is not None:
        own = tuple(piece for piece in layout.pieces if piece.rank == rank)
        return ShardMap(layout.tensors, own, layout.computed)
    for name, one in named.items():
        if not one.numel() and hasattr(one, "ds_numel"):
            check_whole(name, one)
    plain = shard_map_of(
        {name: one for name, one in named.items() if not hasattr(one, "to_local")}, rank=rank
    )
    parts = [plain]
    for mesh in dict.fromkeys(
        one.device_mesh for one in named.values() if hasattr(one, "to_local")
    ):
        some = {
            name: one
            for name, one in named.items()
            if hasattr(one, "to_local") and one.device_mesh == mesh
        }
        here = mesh.get_rank()
        every = shard_map_of_dtensors(some, rank=here)
        held = (replace(one, rank=rank) for one in every.pieces if one.rank == here)
        parts.append(ShardMap(every.tensors, tuple(held), {}))
    tensors = {name: spec for one in parts for name, spec in one.tensors.items()}
    return ShardMap(
        {name: tensors[name] for name in named},
        tuple(piece for one in parts for piece in one.pieces),
        {},
    )


def _local(tensor: Any) -> torch.Tensor:
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local.detach()


def _address(tensor: Any) -> int:
    return int(_local(tensor).data_ptr())


def _cloned(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy whose storage has the same layout, since places count from its start."""
    storage = tensor.untyped_storage().clone()
    made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return made.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())
