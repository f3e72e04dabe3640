"""The weights of a model, counted matrix by matrix from its shape."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from rose.errors import InvalidArgument
from rose.memory.geometry import shard_heads
from rose.memory.model_shape import Experts, Family, Latent, ModelShape
from rose.units import ceil_div

# FP8 weights have a float32 scale per block of this many rows and columns (DeepSeek-V3).
_SCALE_BLOCK: Final = 128
_SCALE_BYTES: Final = 4
_FP8_BYTES: Final = 1
_BF16_BYTES: Final = 2
_NORMS_OF_LAYER: Final = 2  # before attention and before the feed-forward network


class Split(Enum):
    """The part of a matrix that one tensor-parallel device holds: all, or some rows or columns."""

    ALL = auto()
    ROWS = auto()
    COLUMNS = auto()


class WeightDtype(Enum):
    """Storage of weights. FP8 applies to matrices inside layers; all others keep their dtype."""

    BF16 = "bf16"
    FP8 = "fp8"


@dataclass(frozen=True, slots=True)
class Matrix:
    """Equally large matrices of one model; a vector counts as a matrix of one column.

    Args:
        rows: number of rows, the outputs.
        columns: number of columns, the inputs.
        copies: number of such matrices in the model.
        split: how tensor parallelism divides the matrix.
        ways: largest number of parts; with more devices, several hold the same part. None: no
            limit.
        can_be_fp8: whether FP8 checkpoints store the matrix as FP8.
    """

    rows: int
    columns: int
    copies: int
    split: Split = Split.ALL
    ways: int | None = None
    can_be_fp8: bool = False

    @property
    def parameters(self) -> int:
        """Return the number of elements in all copies."""
        return self.rows * self.columns * self.copies

    def bytes_of_shard(self, *, tp: int, dtype_bytes: int, is_fp8: bool) -> int:
        """Return the bytes of all copies on one of `tp` devices, scales included."""
        parts = tp if self.ways is None else min(tp, self.ways)
        rows = ceil_div(self.rows, parts) if self.split is Split.ROWS else self.rows
        columns = ceil_div(self.columns, parts) if self.split is Split.COLUMNS else self.columns
        if not (is_fp8 and self.can_be_fp8):
            return rows * columns * self.copies * dtype_bytes
        scales = ceil_div(rows, _SCALE_BLOCK) * ceil_div(columns, _SCALE_BLOCK)
        return self.copies * (rows * columns * _FP8_BYTES + scales * _SCALE_BYTES)


def matrices(shape: ModelShape) -> Iterator[Matrix]:
    """Yield all weights of the model."""
    yield Matrix(shape.vocab, shape.hidden, 1 if shape.is_tied else 2, Split.ROWS)
    norms = shape.layers * _norms_of_layer(shape.family) + 1
    yield Matrix(shape.hidden, 1, norms)
    if shape.latent is not None:
        yield from _latent_attention(shape, shape.latent)
    else:
        yield from _attention(shape)
    routed = shape.experts.layers if shape.experts else 0
    yield from _feed_forward(shape, shape.intermediate, shape.layers - routed)
    if shape.experts is not None:
        yield from _experts(shape, shape.experts)


def parameters(shape: ModelShape) -> int:
    """Return the number of parameters, except in layers for multi-token prediction."""
    return sum(matrix.parameters for matrix in matrices(shape))


def weight_bytes(shape: ModelShape, *, dtype: WeightDtype | None = None, tp: int = 1) -> int:
    """Return the bytes of weights on one of `tp` devices.

    Args:
        shape: sizes of the model.
        dtype: storage of the weights; None: as published.
        tp: number of tensor-parallel devices. Some engines pad the vocabulary, which is not
            counted.

    Raises:
        InvalidArgument: the model cannot be divided among `tp` devices.
    """
    _check_divides(shape, tp)
    is_fp8 = shape.is_fp8 if dtype is None else dtype is WeightDtype.FP8
    dtype_bytes = _BF16_BYTES if dtype is WeightDtype.BF16 else shape.dtype_bytes
    return sum(
        matrix.bytes_of_shard(tp=tp, dtype_bytes=dtype_bytes, is_fp8=is_fp8)
        for matrix in matrices(shape)
    )


def _check_divides(shape: ModelShape, tp: int) -> None:
    widths = {"attention heads": shape.heads}
    routed = 0
    if shape.experts is not None:
        routed = shape.experts.layers
        widths["moe_intermediate_size"] = shape.experts.intermediate
    if shape.layers > routed:
        widths["intermediate_size"] = shape.intermediate
    for what, width in widths.items():
        if tp < 1 or width % tp:
            raise InvalidArgument(f"{shape.name}: {what} ({width}) cannot be divided by tp {tp}")
    if shape.latent is None:
        shard_heads(shape.kv_heads, tp)


def _norms_of_layer(family: Family) -> int:
    # Gemma 3 also has norms after attention and after the feed-forward network.
    return 2 * _NORMS_OF_LAYER if family is Family.GEMMA3 else _NORMS_OF_LAYER


def _attention(shape: ModelShape) -> Iterator[Matrix]:
    layers, family = shape.layers, shape.family
    query, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    yield Matrix(query, shape.hidden, layers, Split.ROWS, can_be_fp8=True)
    yield Matrix(kv, shape.hidden, 2 * layers, Split.ROWS, shape.kv_heads, can_be_fp8=True)
    yield Matrix(shape.hidden, query, layers, Split.COLUMNS, can_be_fp8=True)
    can_choose = family not in {Family.QWEN2, Family.MISTRAL}
    has_bias = can_choose and shape.has_attention_bias
    if has_bias or family is Family.QWEN2:
        yield Matrix(query, 1, layers, Split.ROWS)
        yield Matrix(kv, 1, 2 * layers, Split.ROWS, shape.kv_heads)
    if has_bias:
        yield Matrix(shape.hidden, 1, layers)
    if family in {Family.QWEN3, Family.QWEN3_MOE, Family.GEMMA3}:
        yield Matrix(shape.head_dim, 1, 2 * layers)  # norms of query and key, for all heads


def _latent_attention(shape: ModelShape, latent: Latent) -> Iterator[Matrix]:
    layers, hidden, heads = shape.layers, shape.hidden, shape.heads
    query = heads * (latent.nope_dim + latent.rope_dim)
    compressed = latent.kv_rank + latent.rope_dim
    if latent.query_rank is None:
        yield Matrix(query, hidden, layers, Split.ROWS, can_be_fp8=True)
    else:
        yield Matrix(latent.query_rank, hidden, layers, can_be_fp8=True)
        yield Matrix(latent.query_rank, 1, layers)  # norm of the compressed query
        yield Matrix(query, latent.query_rank, layers, Split.ROWS, can_be_fp8=True)
    yield Matrix(compressed, hidden, layers, can_be_fp8=True)
    yield Matrix(latent.kv_rank, 1, layers)  # norm of the compressed KV
    keys_and_values = heads * (latent.nope_dim + latent.value_dim)
    yield Matrix(keys_and_values, latent.kv_rank, layers, Split.ROWS, can_be_fp8=True)
    yield Matrix(hidden, heads * latent.value_dim, layers, Split.COLUMNS, can_be_fp8=True)
    if shape.has_attention_bias:
        yield Matrix(compressed + hidden + (latent.query_rank or 0), 1, layers)


def _feed_forward(shape: ModelShape, width: int, copies: int) -> Iterator[Matrix]:
    yield Matrix(width, shape.hidden, 2 * copies, Split.ROWS, can_be_fp8=True)  # gate and up
    yield Matrix(shape.hidden, width, copies, Split.COLUMNS, can_be_fp8=True)
    if shape.family is Family.LLAMA and shape.has_mlp_bias:
        yield Matrix(width, 1, 2 * copies, Split.ROWS)
        yield Matrix(shape.hidden, 1, copies)


def _experts(shape: ModelShape, experts: Experts) -> Iterator[Matrix]:
    yield from _feed_forward(shape, experts.intermediate, experts.count * experts.layers)
    if experts.shared:
        yield from _feed_forward(shape, experts.intermediate * experts.shared, experts.layers)
    yield Matrix(experts.count, shape.hidden, experts.layers)  # the router
    if shape.family is Family.DEEPSEEK_V3:
        yield Matrix(experts.count, 1, experts.layers)  # load-balancing biases
