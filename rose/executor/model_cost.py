"""What one step of a model costs a device, from the model's shape."""

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
    """Return the cost of a step on one of `tp` devices, communication between them left out.

    A prior should not promise too much. So a step reads every expert, although a small batch wakes
    fewer, and attention looks at the whole context, also where a layer has a window.

    Args:
        shape: of the model.
        kv: how its KV is stored.
        tp: devices that share it.
        dtype: of the weights; None for the one the model was published in.

    Raises:
        InvalidArgument: the model cannot be divided so.
    """
    groups = shape.groups(block_tokens=1, kv=kv, tp=tp)
    return ModelCost(
        weight_bytes=weight_bytes(shape, dtype=dtype, tp=tp) - _unread_bytes(shape, dtype, tp),
        token_flops=_FLOPS_OF_A_WEIGHT * _parameters_of_a_token(shape) / tp,
        context_token_bytes=sum(group.geometry.bytes_per_token for group in groups),
        pair_flops=_FLOPS_OF_A_WEIGHT * shape.layers * _elements_of_a_pair(shape) / tp,
    )


def _unread_bytes(shape: ModelShape, dtype: WeightDtype | None, tp: int) -> int:
    """Return the bytes of the embedding, of which a step reads a row per token."""
    if shape.is_tied:  # as the output matrix it is read whole
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
    """Return the products of a query and a key, and of a weight and a value, in one layer."""
    if shape.latent is None:
        return 2 * shape.heads * shape.head_dim
    latent = shape.latent
    return shape.heads * (latent.nope_dim + latent.rope_dim + latent.value_dim)
