"""Back ends of the codec, one per kind of device; all give the same bits."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from rose import _core
from rose.config import read_environment
from rose.errors import CorruptData, InvalidArgument
from rose.transfer.codec.delta import Delta
from rose.transfer.codec.tensor import CPU, TensorBits

if TYPE_CHECKING:  # The GPU back end imports torch.
    from rose.transfer.codec.gpu import GpuBackend

# Default and maximum of `age_limit`: top-k sends a change, however small, after this many packs
# that did not send it.
AGE_LIMIT: Final = 255

ISAS: Final = ("portable", "avx2", "avx512")


class HostBackend:
    """The codec of the C++ core, for tensors in host memory.

    Args:
        isa: instruction set, one of `ISAS` that this machine has; None for the best of them.
    """

    def __init__(self, *, isa: str | None) -> None:
        self._isa = isa

    def delta_pack(
        self,
        new: npt.NDArray[Any],
        shadow: npt.NDArray[Any],
        *,
        block_elements: int,
        threshold: int,
        ages: npt.NDArray[np.uint8] | None = None,
        age_limit: int = AGE_LIMIT,
        threads: int = 1,
        base_digest: tuple[int, int] | None = None,
    ) -> Delta:
        """Pack in one pass over both arrays, on `threads` threads."""
        entries, payload, base, digest = _core.delta_pack(
            new,
            shadow,
            block_elements=block_elements,
            threshold=threshold,
            ages=ages,
            age_limit=age_limit,
            base_digest=base_digest,
            isa=self._isa,
            threads=threads,
        )
        width = 8 * new.itemsize
        return Delta(new.size, block_elements, width, entries, payload, base, digest)

    def delta_apply(
        self,
        weights: npt.NDArray[Any],
        delta: Delta,
        *,
        undo: bool,
        verify: bool = False,
    ) -> None:
        """Check the whole delta, then change only the elements that it lists."""
        if verify:
            _core.delta_verify(
                weights, delta, base_digest=delta.base_digest, digest=delta.digest, undo=undo
            )
        _core.delta_apply(weights, delta, undo=undo, is_checked=delta.is_checked)

    def delta_pack_all(
        self,
        new: Sequence[npt.NDArray[Any]],
        shadow: Sequence[npt.NDArray[Any]],
        *,
        block_elements: int,
        base_digests: Sequence[tuple[int, int] | None],
        threads: int = 1,
    ) -> list[Delta]:
        """Pack all tensors; on an error, restore the shadows that are packed already."""
        deltas: list[Delta] = []
        with ExitStack() as undo:
            for one, other, base in zip(new, shadow, base_digests, strict=True):
                delta = self.delta_pack(
                    one,
                    other,
                    block_elements=block_elements,
                    threshold=0,
                    threads=threads,
                    base_digest=base,
                )
                deltas.append(delta)
                undo.callback(self.delta_apply, other, delta, undo=True)
            undo.pop_all()
        return deltas

    def delta_apply_all(
        self,
        weights: Sequence[npt.NDArray[Any]],
        deltas: Sequence[Delta],
        names: Sequence[str],
        *,
        undo: bool,
        verify: bool = False,
    ) -> None:
        """Check all deltas, then apply them, all or none."""
        check_all(deltas, names)
        with ExitStack() as back:
            for one, delta, name in zip(weights, deltas, names, strict=True):
                with about(name):
                    self.delta_apply(one, replace(delta, is_checked=True), undo=undo, verify=verify)
                back.callback(self.delta_apply, one, delta, undo=not undo)
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


# Both offer the same operations on `TensorBits.bits`, and give the same bits.
Backend: TypeAlias = "HostBackend | GpuBackend"


@contextmanager
def about(name: str) -> Iterator[None]:
    """Put the tensor's name, if it has one, before the message of an error."""
    try:
        yield
    except (CorruptData, InvalidArgument) as error:
        if not name:
            raise
        raise type(error)(f"{name}: {error}") from error


def check_all(deltas: Sequence[Delta], names: Sequence[str]) -> None:
    """Check the deltas that are not marked as checked.

    Raises:
        CorruptData: a delta is not well formed; the message names its tensor and the block.
    """
    for delta, name in zip(deltas, names, strict=True):
        if not delta.is_checked:
            with about(name):
                _core.delta_check(delta)


def backend_of(tensor: TensorBits, stream: Any = None) -> Backend:
    """Return the back end for the device of `tensor`: the core, or a GPU's kernels on `stream`.

    Raises:
        InvalidArgument: no back end runs on the device.
        Unavailable: rose finds no usable driver for the GPU.
        ImportError: this build has no kernels for the GPU, and Triton is not installed.
    """
    if tensor.device == CPU:
        return HostBackend(isa=lowered_isa(read_environment().isa))
    if not tensor.device.startswith("cuda"):
        raise InvalidArgument(
            f"{tensor.name} is on {tensor.device}: transfer computes on CPUs and on CUDA or ROCm "
            "GPUs, pass .cpu()"
        )
    # Imported here, because these modules import torch, and Triton or the driver.
    from rose.kernels.gpu import codec_of  # noqa: PLC0415
    from rose.transfer.codec.gpu import GpuBackend  # noqa: PLC0415

    return GpuBackend(codec_of(tensor.bits.device.index), stream)


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
