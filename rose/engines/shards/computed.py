"""Tensors that a loader transforms: kept on the host, and loaded again after changes."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import torch
from torch import nn

from rose.engines.shards.copy_before_write import CopyBeforeWrite
from rose.engines.shards.plain import whole
from rose.engines.shards.slots import Slots
from rose.engines.shards.storages import (
    dtype_of,
    look_of,
    parameters_of,
    storage_of,
    storages_of,
)
from rose.engines.shards.trace import Loader
from rose.errors import InvalidArgument
from rose.transfer.plan import Piece, ShardMap, TensorSpec

# Prefix of the names of host copies in pieces; no parameter's name begins with it.
_PREFIX: Final = "host:"


class ComputedTensors:
    """A host copy of some tensors, as in the checkpoint, and a way to load changes into the model.

    A delta changes the copies; `load` passes the copies to the model's own loader; `undo` restores
    every bit that the last `load` wrote. Call the methods between two steps, on one thread; nobody
    else may write the model meanwhile.

    Every write that torch dispatches is recorded, whether its tensor is registered or not. Two
    kinds of changes cannot be undone: writes outside torch's dispatch (by a kernel that gets an
    address), and attributes that a loader sets on objects other than the model's tensors.

    Args:
        model: model that the loader writes.
        load_weights: loader of (name, tensor) pairs; must accept a subset of the tensors.
        named: tensors of the checkpoint by name, with their current elements; copied.
        ends: `LoaderTrace.ends`, the parameters that depend on each tensor. `load` then passes only
            changed tensors, and tensors on which the same parameters depend. None: every `load`
            passes all tensors.
    """

    def __init__(
        self,
        model: nn.Module,
        load_weights: Loader,
        named: Mapping[str, torch.Tensor],
        *,
        ends: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        self._model = model
        self._load_weights = load_weights
        self._ends = ends or {}
        self._host = {
            name: one.detach().to("cpu", copy=True).contiguous() for name, one in named.items()
        }
        self._saved = CopyBeforeWrite()

    @property
    def parameters(self) -> dict[str, torch.Tensor]:
        """Return the host copies, by the names in `pieces`; change them in place."""
        return {_PREFIX + name: one for name, one in self._host.items()}

    @property
    def names(self) -> dict[str, str]:
        """Map the names in `pieces` to the names of the tensors."""
        return {_PREFIX + name: name for name in self._host}

    def pieces(self, rank: int) -> tuple[Piece, ...]:
        """Return the pieces of a rank: one for each host copy that is not empty."""
        return tuple(
            whole(name, look_of(one), _PREFIX + name, rank=rank)
            for name, one in self._host.items()
            if one.numel()
        )

    def storages(self, rank: int) -> dict[tuple[int, str], int]:
        """Return the number of elements of every copy, as in `LoaderTrace.storages`."""
        return storages_of(self.parameters, rank=rank)

    def completed(self, shards: ShardMap) -> ShardMap:
        """Return `shards` with pieces for these tensors too, on the host of every rank.

        Raises:
            InvalidArgument: one of these tensors is not in `shards.computed`.
        """
        for name in self._host:
            if name not in shards.computed:
                raise InvalidArgument(
                    f"{name} is not computed in the map: give ComputedTensors only the tensors of "
                    "shards.computed"
                )
        ranks = shards.ranks or (0,)
        pieces = tuple(piece for rank in ranks for piece in self.pieces(rank))
        computed = {name: why for name, why in shards.computed.items() if name not in self._host}
        specs = {
            name: TensorSpec(name, tuple(one.shape), dtype_of(one))
            for name, one in self._host.items()
        }
        return ShardMap({**shards.tensors, **specs}, shards.pieces + pieces, computed)

    def load(self, changed: Iterable[str] | None = None) -> None:
        """Pass the copies to the model's loader.

        If `changed` names tensors, only these are passed, and those on which the same parameters
        depend. The previous load can no longer be undone. If the loader fails or replaces a
        parameter, the model is restored.

        Raises:
            InvalidArgument: the loader replaced a parameter, or a tensor is unknown.
        """
        names = self._needed(changed)
        self.settle()
        slots = Slots(self._model)
        is_done = False
        try:
            with torch.no_grad(), self._saved:
                self._load_weights(self._feed(names))
            self._check_places(slots)
            is_done = True
        finally:
            if not is_done:
                slots.restore()
                self.undo()

    def undo(self) -> None:
        """Restore every bit of the model that the last load wrote; host copies do not change."""
        self._saved.restore()

    def settle(self) -> None:
        """Drop the bits that `undo` would restore, so that the last load becomes final."""
        self._saved = CopyBeforeWrite()

    def _feed(self, names: Iterable[str]) -> Iterator[tuple[str, torch.Tensor]]:
        for name in names:
            # A loader may keep or change the tensors that it is given.
            yield name, self._host[name].clone()

    def _needed(self, changed: Iterable[str] | None) -> list[str]:
        """Return the changed tensors, and all tensors on which the same parameters depend."""
        if changed is None or not self._ends:
            return list(self._host)
        needed = set(changed)
        if unknown := needed - self._host.keys():
            raise InvalidArgument(
                f"changed must name tensors of this ComputedTensors, got {min(unknown)}"
            )
        while True:
            places = {place for name in needed for place in self._ends.get(name, ())}
            # If the loader read a tensor's elements, the parameters that depend on this tensor are
            # unknown. So the tensor is always loaded.
            more = {
                name
                for name in self._host
                if not self._ends.get(name) or not places.isdisjoint(self._ends[name])
            }
            if more <= needed:
                return [name for name in self._host if name in needed]
            needed |= more

    def _check_places(self, slots: Slots) -> None:
        name_of = {storage_of(one): name for name, one in parameters_of(self._model).items()}
        for _, after in slots.replaced():
            raise InvalidArgument(
                f"the loader must copy into {name_of[storage_of(after)]}, "
                "but it replaced the tensor by another one"
            )
