"""Whether steps read exactly the weights that they should read."""

import numpy as np
import torch
from torch import nn

from rose.engines.transformers import LeasedWeights, LiveWeights
from rose.engines.transformers.live_weights import _bits_of
from rose.executor.weights import WeightsState


def flat_bits(model: nn.Module) -> np.ndarray:
    """The weights in the model's order as one row of bf16 bits, each tied weight once."""
    return _bits_of(model.parameters())


def is_intact(weights: LiveWeights) -> bool:
    """Whether every live parameter equals the row bit by bit, at its right address."""
    is_read = _is_attached(weights) if weights.mirror is None else equals_host(weights.mirror)
    return is_read and all(weights._equals(tile) for tile in range(weights.tiles))


def _is_attached(weights: LiveWeights) -> bool:
    """Whether the model still computes with the buffer, not with other storage."""
    at = weights._live.data_ptr()
    for parameter in weights._parameters:
        if parameter.data_ptr() != at:
            return False
        at += parameter.numel() * parameter.element_size()
    return True


def equals_host(leased: LeasedWeights) -> bool:
    """Whether the weights that steps read equal the host copy bit by bit, at their addresses."""
    return all(_is_right(leased, at) for at in range(len(leased._host)))


def _is_right(leased: LeasedWeights, at: int) -> bool:
    shown, host = leased._parameters[at].data, leased._host[at]
    with leased.lease._lock:  # The weights stay where they are.
        if leased.lease._state is not WeightsState.ACTIVE:
            return leased._is_apart or shown.data_ptr() == host.data_ptr()
        is_there = shown.data_ptr() == leased._on_device(at).data_ptr()
        return is_there and torch.equal(_bytes(shown), _bytes(host).to(shown.device))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(-1).view(torch.uint8)
