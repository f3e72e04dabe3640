"""Weights as the receiver stores them: FP8 or INT8 codes with block scales, and their deltas.

A trainer quantises bf16-rounded weights, not its fp32 masters. Then a step changes hardly any
scale, and only about a tenth as many codes as bf16 elements change. The rules are in
`docs/protocol.md`, "Quantised weights"; every back end gives the same bits.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, Literal

import numpy as np

from rose import _core
from rose.config import read_environment
from rose.errors import InvalidArgument
from rose.transfer.codec.backend import lowered_isa
from rose.transfer.codec.delta import BLOCK_ELEMENTS, Delta
from rose.transfer.codec.operations import delta_apply, delta_pack
from rose.transfer.codec.tensor import CPU
from rose.units import ceil_div

CodeKind = Literal["fp8", "int8"]
KINDS: Final = ("fp8", "int8")
FP8_BLOCK: Final = (128, 128)
_BF16_BITS: Final = frozenset({"bfloat16", "int16", "uint16"})


@dataclass(frozen=True, slots=True, eq=False)
class Quantised:
    """A matrix of weights as one-byte codes and scales, both NumPy arrays or both torch tensors.

    Args:
        codes: (rows, cols) uint8, contiguous: bits of e4m3fn, or two's complement.
        scales: (blocks down, blocks across) float32, contiguous, above 0 and finite.
        to: "fp8" or "int8".
        block: (rows, columns) of weights that share a scale; blocks at the edges are smaller.
    """

    codes: Any
    scales: Any
    to: CodeKind
    block: tuple[int, int]

    def __post_init__(self) -> None:
        """Check that the fields are consistent; the values of the scales are not read.

        Raises:
            InvalidArgument: a field contradicts the others; the message names it.
        """
        _check_kind(self.to)
        _check_block(self.block)
        for name, array, dtype in (
            ("codes", self.codes, "uint8"),
            ("scales", self.scales, "float32"),
        ):
            _check_array(name, array, dtype)
        if len(self.codes.shape) != 2:
            raise InvalidArgument(f"codes have the shape {tuple(self.codes.shape)}: pass a matrix")
        wanted = tuple(map(ceil_div, self.codes.shape, self.block))
        if tuple(self.scales.shape) != wanted:
            raise InvalidArgument(
                f"scales have the shape {tuple(self.scales.shape)}: codes of "
                f"{tuple(self.codes.shape)} in blocks of {self.block} need {wanted}"
            )
        if (one := _device_of(self.codes)) != (other := _device_of(self.scales)):
            raise InvalidArgument(f"codes are on {one} and scales on {other}: move one of them")


def quantise(weights: Any, *, to: CodeKind, block: tuple[int, int] | None = None) -> Quantised:
    """Quantise a matrix of bf16 weights on its own device.

    A scale is the largest finite magnitude of its block divided by 448 (FP8) or 127 (INT8), or 1 if
    that magnitude is 0. An infinite weight becomes the largest code. A NaN stays NaN in FP8 and
    becomes 0 in INT8.

    Args:
        weights: (rows, cols) bfloat16 of torch, or its bits as int16 or uint16 of torch or uint16
            of NumPy. Each row is contiguous; there may be gaps between rows.
        to: "fp8" for e4m3fn, or "int8".
        block: (rows, columns) of weights that share a scale; by default 128 x 128 for FP8, a row
            for INT8. On a GPU one CTA handles one block, so one scale for a whole tensor is slow.

    Returns:
        Arrays of the same library and device as the weights. GPU work is queued on torch's current
        stream and not waited for.

    Raises:
        InvalidArgument: dtype, shape, `to` or `block` is not supported.
        OutOfMemory: no memory is left for the codes.
        Unavailable: rose finds no usable driver for the GPU, or this build has no kernels for it.
    """
    _check_kind(to)
    bits, give_back = _matrix_of(weights)
    if block is None:
        block = FP8_BLOCK if to == "fp8" else (1, max(1, bits.shape[1]))
    _check_block(block)
    if (device := _device_of(bits)) == CPU:
        isa = lowered_isa(read_environment().isa)
        rows, cols = block
        made = _core.quantise(bits, to=to, block_rows=rows, block_cols=cols, isa=isa)
        codes, scales = map(give_back, made)
    elif device.startswith("cuda"):
        # Imported here, because that module imports torch and opens the driver.
        quantiser = import_module("rose.kernels.quantiser").quantiser_of(bits.device.index)
        codes, scales = quantiser.quantise(bits, to=to, block=block)
    else:
        raise InvalidArgument(
            f"weights are on {device}: transfer computes on CPUs and on CUDA or ROCm GPUs, "
            "pass .cpu()"
        )
    return Quantised(codes, scales, to, block)


def dequantise(quantised: Quantised) -> Any:
    """Return the weights of codes and scales, rounded to bf16. Computes only on CPUs.

    Returns:
        (rows, cols) uint16, or torch bfloat16 if the codes are a torch tensor.

    Raises:
        InvalidArgument: the arrays are on a GPU, or a scale is not above 0 and finite.
        OutOfMemory: no memory is left for the weights.
    """
    if (device := _device_of(quantised.codes)) != CPU:
        raise InvalidArgument(f"codes are on {device}: dequantise computes on CPUs, pass .cpu()")
    rows, cols = quantised.block
    bits = _core.dequantise(
        np.asarray(quantised.codes),
        np.asarray(quantised.scales),
        to=quantised.to,
        block_rows=rows,
        block_cols=cols,
    )
    if (torch := _torch_of(quantised.codes)) is None:
        return bits
    return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)


def quantise_pack(
    weights: Any, shadow: Quantised, *, block_elements: int = BLOCK_ELEMENTS[0]
) -> tuple[Delta, Delta]:
    """Quantise `weights` like `shadow`, pack the differences, and apply them to `shadow`.

    Args:
        weights: see `quantise`; on the device of the shadow.
        shadow: codes and scales that the receiver holds; written in place. On an error they are
            unchanged.
        block_elements: delta block size of the codes, see `delta_pack`. Few codes change, so the
            default suits them.

    Returns:
        The deltas of the codes (8-bit elements) and of the scales (32-bit elements).

    Raises:
        InvalidArgument: the weights do not match the shadow, or the shadow is read-only.
        OutOfMemory: no memory is left for codes or deltas.
    """
    fresh = quantise(weights, to=shadow.to, block=shadow.block)
    if fresh.codes.shape != shadow.codes.shape:
        raise InvalidArgument(
            f"weights have the shape {tuple(fresh.codes.shape)} and the shadow "
            f"{tuple(shadow.codes.shape)}: make them equal"
        )
    scales = delta_pack(fresh.scales, shadow.scales)
    is_whole = False
    try:
        codes = delta_pack(fresh.codes, shadow.codes, block_elements=block_elements)
        is_whole = True
    finally:
        if not is_whole:  # even after an interrupt, codes and scales belong to one version
            delta_apply(shadow.scales, scales, undo=True)
    return codes, scales


def _check_kind(to: str) -> None:
    if to not in KINDS:
        raise InvalidArgument(f"to '{to}': choose fp8 or int8")


def _check_block(block: tuple[int, ...]) -> None:
    if len(block) != 2 or not all(1 <= size < 1 << 63 for size in block):
        raise InvalidArgument(f"block {block}: pass rows and columns, each at least 1")


def _torch_of(array: Any) -> Any:
    """Return torch if `array` is a torch tensor, else None; never imports torch."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and isinstance(array, torch.Tensor) else None


def _device_of(array: Any) -> str:
    return CPU if isinstance(array, np.ndarray) else str(array.device)


def _check_array(name: str, array: Any, dtype: str) -> None:
    if _torch_of(array) is not None:
        is_row_major = array.is_contiguous()
    elif isinstance(array, np.ndarray):
        is_row_major = array.flags.c_contiguous and array.flags.aligned
    else:
        raise InvalidArgument(
            f"{name} are a {type(array).__name__}: pass an array of NumPy or a tensor of torch"
        )
    if str(array.dtype).removeprefix("torch.") != dtype:
        raise InvalidArgument(f"{name} have the dtype {array.dtype}: pass them as {dtype}")
    if not is_row_major:
        raise InvalidArgument(f"{name} are not contiguous: pass a contiguous copy")


def _matrix_of(weights: Any) -> tuple[Any, Callable[[Any], Any]]:
    """Return the bits of the weights, and a function that converts CPU results to their type."""
    torch = _torch_of(weights)
    if torch is None and not isinstance(weights, np.ndarray):
        raise InvalidArgument(
            f"weights are a {type(weights).__name__}: pass an array of NumPy or a tensor of torch"
        )
    dtype = str(weights.dtype).removeprefix("torch.")
    if dtype not in (_BF16_BITS if torch is not None else {"uint16"}):
        raise InvalidArgument(
            f"weights have the dtype {dtype}: pass bfloat16 of torch, or its bits as uint16"
        )
    if len(weights.shape) != 2:
        raise InvalidArgument(f"weights have the shape {tuple(weights.shape)}: pass a matrix")
    if torch is None:
        return weights, lambda made: made
    if weights.layout != torch.strided:
        raise InvalidArgument(f"weights are {weights.layout}: pass a dense tensor")
    bits = weights.detach().view(torch.int16)
    if bits.device.type == CPU:
        bits = bits.numpy().view(np.uint16)
    return bits, torch.from_numpy
