"""Tensors that a loader computes with: kept on the host, loaded again when they changed."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import torch
from torch import nn

from rose.engines.shards.keeper import Keeper
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

# No parameter has such a name: the pieces of host copies look into these.
_PREFIX: Final = "host:"


class ComputedTensors:
    """A host copy of some tensors, as the checkpoint has them, and how a change reaches the model.

    A delta changes the copies; `load` lets the model's own loader take them; `undo` puts back every
    bit that this load wrote. Between two steps, on one thread; nobody else writes the model.

    Writes are seen where torch dispatches them, to registered tensors and others. What a loader
    writes behind its back (a kernel that is given an address), and attributes it sets to other
    things than tensors of the model, are not undone.

    Args:
        model: that the loader writes.
        load_weights: takes (name, tensor) pairs, also of some tensors only.
        named: the elements that the model was loaded with, of just these tensors; copied.
        ends: of a `Trace`: tensors that end in one parameter are loaded together, the others only
            if they changed. Without it all are loaded, always.
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
        self._keeper = Keeper()

    @property
    def parameters(self) -> dict[str, torch.Tensor]:
        """Return the host copies, by the names that `pieces` look into; change them in place."""
        return {_PREFIX + name: one for name, one in self._host.items()}

    def pieces(self, rank: int) -> tuple[Piece, ...]:
        """Return where a rank keeps the copies."""
        return tuple(
            whole(name, look_of(one), _PREFIX + name, rank=rank)
            for name, one in self._host.items()
            if one.numel()
        )

    def storages(self, rank: int) -> dict[tuple[int, str], int]:
        """Return the elements of every copy, as those of parameters in a `Trace`."""
        return storages_of(self.parameters, rank=rank)

    def completed(self, shards: ShardMap) -> ShardMap:
        """Return a map in which these tensors lie on the host of every rank of the map.

        Raises:
            InvalidArgument: a tensor is not computed there.
        """
        for name in self._host:
            if name not in shards.computed:
                raise InvalidArgument(f"{name} is not computed: its pieces are in the map")
        ranks = shards.ranks or (0,)
        pieces = tuple(piece for rank in ranks for piece in self.pieces(rank))
        computed = {name: why for name, why in shards.computed.items() if name not in self._host}
        specs = {
            name: TensorSpec(name, tuple(one.shape), dtype_of(one))
            for name, one in self._host.items()
        }
        return ShardMap({**shards.tensors, **specs}, shards.pieces + pieces, computed)

    def load(self, changed: Iterable[str] | None = None) -> None:
        """Let the loader take the copies; all of them, or those that `changed` ones need.

        What the load before this one wrote can no longer be undone. If the loader fails, or puts
        another tensor in the place of one that others look at, everything is as before.

        Raises:
            InvalidArgument: the loader replaced a parameter, or there is no such tensor.
        """
        names = self._needed(changed)
        self.settle()
        slots = Slots(self._model)
        is_done = False
        try:
            with torch.no_grad(), self._keeper:
                self._load_weights(self._feed(names))
            self._check_places(slots)
            is_done = True
        finally:
            if not is_done:
                slots.restore()
                self.undo()

    def undo(self) -> None:
        """Put back every bit that the last load wrote, in the model; the copies stay."""
        self._keeper.restore()

    def settle(self) -> None:
        """Forget what the last load wrote over."""
        self._keeper = Keeper()

    def _feed(self, names: Iterable[str]) -> Iterator[tuple[str, torch.Tensor]]:
        for name in names:
            # A loader may keep what it is given, or change it.
            yield name, self._host[name].clone()

    def _needed(self, changed: Iterable[str] | None) -> list[str]:
        """Return the changed tensors and all that end where one of them does."""
        if changed is None or not self._ends:
            return list(self._host)
        needed = set(changed)
        if unknown := needed - self._host.keys():
            raise InvalidArgument(f"{min(unknown)} is none of the computed tensors")
        while True:
            places = {place for name in needed for place in self._ends.get(name, ())}
            # Nobody knows where a loader stopped that asked for elements: such are always loaded.
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
                f"the loader puts another tensor in the place of {name_of[storage_of(after)]}, "
                "where its tiles could not follow: let it copy"
            )
