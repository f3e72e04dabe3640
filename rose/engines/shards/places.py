"""Live parameters as the tiles of a plan: strided tensors that share their memory."""

from collections.abc import Mapping

import torch

from rose.engines.shards.look import Look
from rose.engines.shards.storages import elements_of
from rose.errors import InvalidArgument
from rose.transfer.plan import LocalView, Places


def views_of(
    parameters: Mapping[str, torch.Tensor], places: Places
) -> dict[int, tuple[torch.Tensor, ...]]:
    """Return for each tile views of the parameters at the tile's places; nothing is copied.

    Changing a view changes the parameter, without autograd noticing.

    Args:
        parameters: tensors by parameter name; only the storage of a tensor matters.
        places: places of each tile, as `Plan.places` and `Plan.sent_from` return them.

    Raises:
        InvalidArgument: a parameter is missing, or a view is malformed or exceeds its storage.
    """
    return {
        tile: tuple(_view(parameters, view, shape) for view, shape in row)
        for tile, row in places.items()
    }


def _view(
    parameters: Mapping[str, torch.Tensor], view: LocalView, shape: tuple[int, ...]
) -> torch.Tensor:
    tensor = parameters.get(view.parameter)
    if tensor is None:
        raise InvalidArgument(f"parameters must contain {view.parameter}, which the plan names")
    if len(shape) != len(view.strides):
        raise InvalidArgument(
            f"a view of {view.parameter} must have a stride per dimension, got shape {shape} and "
            f"strides {view.strides}"
        )
    look = Look(view.offset, shape, view.strides)
    if min((view.offset, *view.strides)) < 0 or look.last >= elements_of(tensor):
        raise InvalidArgument(
            f"a view of {view.parameter} must lie within its storage of {elements_of(tensor)} "
            f"elements, got offset {view.offset}, last element {look.last}, strides {view.strides}"
        )
    return tensor.detach().as_strided(shape, view.strides, view.offset)
