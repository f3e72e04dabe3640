"""Compute the cost of a step from a model's shape."""

from typing import Final

from rose.memory.model_shape import KVDtype, ModelShape
from rose.memory.model_weights import WeightDtype, parameters, weight_bytes
from rose.slo.prior import ModelCost
from rose.units import ceil_div

_FLOPS_OF_A_WEIGHT: Final = 2  # a multiplication and an addition
_BF16_BYTES: Final = 2
_MATRICES_OF_AN_EXPERT: Final = 3  # gate, up and down


def model_cost(
    shape: ModelShape, *, kv: KVDtype, tp: int = 1, dtype: WeightDtype | None = None
) -> ModelCost:
    """Return the cost of a step on one of `tp` devices, without communication.

    The first latency estimates are computed from this cost, and must not be too low. So it is
    assumed that a step reads every expert, although a small batch activates fewer, and that
    attention reads the whole context in every layer, although sliding-window layers read less.

    Args:
        shape: shape of the model.
        kv: dtype of the KV cache.
        tp: number of tensor-parallel devices.
        dtype: dtype of the weights; None: as published.

    Raises:
        InvalidArgument: the model cannot be divided among `tp` devices.
    """
    groups = shape.groups(block_tokens=1, kv=kv, tp=tp)
    return ModelCost(
        weight_bytes=weight_bytes(shape, dtype=dtype, tp=tp) - _unread_bytes(shape, dtype, tp),
        token_flops=_FLOPS_OF_A_WEIGHT * _parameters_of_a_token(shape) / tp,
        context_token_bytes=sum(group.geometry.bytes_per_token for group in groups),
        pair_flops=_FLOPS_OF_A_WEIGHT * shape.layers * _elements_of_a_pair(shape) / tp,
    )


def _unread_bytes(shape: ModelShape, dtype: WeightDtype | None, tp: int) -> int:
    """Return the bytes of the embedding, which a step hardly reads: only one row per token."""
    if shape.is_tied:  # The embedding is also the output matrix, which a step reads whole.
        return 0
    element_bytes = _BF16_BYTES if dtype is WeightDtype.BF16 else shape.dtype_bytes
    return ceil_div(shape.vocab, tp) * shape.hidden * element_bytes


def _parameters_of_a_token(shape: ModelShape) -> int:
    unused = 0 if shape.is_tied else shape.vocab * shape.hidden
    if shape.experts is not None:
        idle = (shape.experts.count - shape.experts.per_token) * shape.experts.layers
        unused += _MATRICES_OF_AN_EXPERT * shape.hidden * shape.experts.intermediate * idle
    return parameters(shape) - unused


def _elements_of_a_pair(shape: ModelShape) -> int:
    """Return the number of multiplications for one (query, key) pair in one layer's attention."""
    if shape.latent is None:
        return 2 * shape.heads * shape.head_dim
    latent = shape.latent
    return shape.heads * (latent.nope_dim + latent.rope_dim + latent.value_dim)
