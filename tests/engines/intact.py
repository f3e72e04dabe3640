"""Whether steps read exactly the weights that they should read."""

import numpy as np
from torch import nn

from rose.engines.transformers import LiveWeights
from rose.engines.transformers.live_weights import _bits_of


def flat_bits(model: nn.Module) -> np.ndarray:
    """The weights in the model's order as one row of bf16 bits, each tied weight once."""
    return _bits_of(model.parameters())


def is_intact(weights: LiveWeights) -> bool:
    """Whether every live parameter equals the row bit by bit, at its right address."""
    return _is_attached(weights) and all(weights._equals(tile) for tile in range(weights.tiles))


def _is_attached(weights: LiveWeights) -> bool:
    """Whether the model still computes with the buffer, not with other storage."""
    at = weights._live.data_ptr()
    for parameter in weights._parameters:
        if parameter.data_ptr() != at:
            return False
        at += parameter.numel() * parameter.element_size()
    return True
