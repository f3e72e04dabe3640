"""Codecs, one per kind of device; all give the same bits."""

import functools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from rose import _core
from rose.config import read_environment
from rose.errors import InvalidArgument
from rose.kernels.deltas import AGE_LIMIT, PackedDelta, about, check_all
from rose.transfer.codec.delta import Delta
from rose.transfer.codec.tensor import CPU, TensorBits

if TYPE_CHECKING:  # These modules import torch, and Triton or the driver.
    from rose.kernels.embedded import EmbeddedCodec
    from rose.kernels.triton_codec import TritonCodec

ISAS: Final = ("portable", "avx2", "avx512")


class HostCodec:
    """The codec of the C++ core, for tensors in host memory.

    Args:
        isa: instruction set, one of `ISAS` that this machine has; None for the best of them.
    """

    def __init__(self, *, isa: str | None) -> None:
        self._isa = isa

    def delta_pack(
        self,
        new: Sequence[npt.NDArray[Any]],
        shadow: Sequence[npt.NDArray[Any]],
        *,
        block_elements: int,
        base_digests: Sequence[tuple[int, int] | None],
        threshold: int = 0,
        ages: npt.NDArray[np.uint8] | None = None,
        age_limit: int = AGE_LIMIT,
        threads: int = 1,
    ) -> list[PackedDelta]:
        """Pack all tensors; on an error, restore the shadows that are packed already."""
        deltas: list[PackedDelta] = []
        with ExitStack() as back:
            for one, other, base in zip(new, shadow, base_digests, strict=True):
                packed = _core.delta_pack(
                    one,
                    other,
                    block_elements=block_elements,
                    threshold=threshold,
                    ages=ages,
                    age_limit=age_limit,
                    base_digest=base,
                    isa=self._isa,
                    threads=threads,
                )
                deltas.append(PackedDelta(*packed))
                delta = Delta(one.size, block_elements, 8 * one.itemsize, *packed, is_checked=True)
                back.callback(self.delta_apply, [other], [delta], [""], undo=True)
            back.pop_all()
        return deltas

    def delta_apply(
        self,
        weights: Sequence[npt.NDArray[Any]],
        deltas: Sequence[Delta],
        names: Sequence[str],
        *,
        undo: bool,
        verify: bool = False,
    ) -> None:
        """Check all deltas, then change only the elements that they list, all or none."""
        check_all(deltas, names)
        with ExitStack() as back:
            for one, delta, name in zip(weights, deltas, names, strict=True):
                with about(name):
                    if verify:
                        _core.delta_verify(
                            one,
                            delta,
                            base_digest=delta.base_digest,
                            digest=delta.digest,
                            undo=undo,
                        )
                    _core.delta_apply(one, delta, undo=undo, is_checked=True)
                back.callback(_core.delta_apply, one, delta, undo=not undo, is_checked=True)
            back.pop_all()

    def topk_threshold(
        self,
        new: npt.NDArray[np.uint16],
        shadow: npt.NDArray[np.uint16],
        *,
        budget: int,
        ages: npt.NDArray[np.uint8] | None = None,
        age_limit: int = AGE_LIMIT,
        threads: int = 1,
    ) -> int:
        """Return the lowest threshold for change sizes that sends at most `budget` elements."""
        return _core.topk_threshold(
            new,
            shadow,
            budget=budget,
            ages=ages,
            age_limit=age_limit,
            isa=self._isa,
            threads=threads,
        )

    def topk_unpack(
        self, base: npt.NDArray[Any], delta: Delta
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
        """Check the whole delta, then list its changes."""
        return _core.topk_unpack(base, delta)

    def digest(self, bits: npt.NDArray[Any], *, threads: int = 1) -> tuple[int, int]:
        """Return the digest of an array."""
        return _core.digest(bits, isa=self._isa, threads=threads)


# All offer the same operations on `TensorBits.bits`, and give the same bits.
Codec: TypeAlias = "HostCodec | EmbeddedCodec | TritonCodec"


@contextmanager
def codec_of(tensor: TensorBits, stream: Any = None) -> Iterator[Codec]:
    """Yield the codec for the device of `tensor`; on a GPU its work is queued on `stream`.

    Raises:
        InvalidArgument: no codec runs on the device.
        Unavailable: rose finds no usable driver for the GPU.
        ImportError: this build has no kernels for the GPU, and Triton is not installed.
    """
    if tensor.device == CPU:
        yield HostCodec(isa=host_isa())
        return
    if not tensor.device.startswith("cuda"):
        raise InvalidArgument(
            f"{tensor.name} is on {tensor.device}: transfer computes on CPUs and on CUDA or ROCm "
            "GPUs, pass .cpu()"
        )
    # Imported here, because these modules import torch, and Triton or the driver.
    from rose.kernels.codec import gpu_codec  # noqa: PLC0415
    from rose.kernels.streams import on_stream  # noqa: PLC0415

    with on_stream(stream, tensor.bits.device):
        yield gpu_codec(tensor.bits.device.index)


@functools.cache
def host_isa() -> str | None:
    """Return the instruction set of the host's codec; None for the best of this machine.

    The environment is read at the first call.
    """
    return lowered_isa(read_environment().isa)


def lowered_isa(wanted: str | None) -> str | None:
    """Return the instruction set to use: `wanted` if this machine has it, else None.

    None means the best instruction set of this machine. If the machine lacks `wanted`, its best set
    is lower than `wanted`.
    """
    if wanted is None:
        return None
    if wanted not in ISAS:
        raise InvalidArgument(f"ROSE_ISA={wanted}: choose {', '.join(ISAS[:-1])} or {ISAS[-1]}")
    return wanted if wanted in _core.isa_names() else None
