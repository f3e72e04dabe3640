"""Who computes: one back end per kind of device, all with the same bits."""

from importlib import import_module
from typing import Any, Final, Protocol, cast

import numpy as np
import numpy.typing as npt

from rose import _core
from rose.config import read_environment
from rose.errors import InvalidArgument
from rose.transfer.delta import Delta
from rose.transfer.tensor import CPU, TensorBits

ISAS: Final = ("portable", "avx2", "avx512")


class Backend(Protocol):
    """The codec on one kind of device; takes `TensorBits.bits` that live there."""

    def delta_pack(self, new: Any, shadow: Any, *, block_elements: int, threshold: int) -> Delta:
        """Pack what reaches the threshold and move the shadow there."""
        ...

    def delta_apply(self, weights: Any, delta: Delta, *, undo: bool) -> None:
        """Change the weights, or change them back."""
        ...

    def topk_threshold(self, new: Any, shadow: Any, *, budget: int) -> int:
        """Return the smallest threshold that at most `budget` changes reach."""
        ...

    def topk_unpack(
        self, base: Any, delta: Delta
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint16]]:
        """Return what changes and what it becomes."""
        ...

    def digest(self, bits: Any, *, first_index: int, seed: int) -> tuple[int, int]:
        """Return the digest of a part of a tensor."""
        ...


class HostBackend:
    """The C++ core on one thread.

    Args:
        isa: the instruction set, one of `ISAS` that this machine has; None for its best.
    """

    def __init__(self, *, isa: str | None) -> None:
        self._isa = isa

    def delta_pack(
        self,
        new: npt.NDArray[np.uint16],
        shadow: npt.NDArray[np.uint16],
        *,
        block_elements: int,
        threshold: int,
    ) -> Delta:
        """Pack in one pass over both arrays."""
        entries, payload, digest = _core.delta_pack(
            new, shadow, block_elements=block_elements, threshold=threshold, isa=self._isa
        )
        return Delta(len(new), block_elements, entries, payload, digest)

    def delta_apply(self, weights: npt.NDArray[np.uint16], delta: Delta, *, undo: bool) -> None:
        """Check all of the delta, then work on what changes only."""
        _core.delta_apply(
            weights,
            count=delta.count,
            block_elements=delta.block_elements,
            entries=delta.entries,
            payload=delta.payload,
            undo=undo,
        )

    def topk_threshold(
        self, new: npt.NDArray[np.uint16], shadow: npt.NDArray[np.uint16], *, budget: int
    ) -> int:
        """Count the changes by size and take the largest."""
        return _core.topk_threshold(new, shadow, budget=budget, isa=self._isa)

    def topk_unpack(
        self, base: npt.NDArray[np.uint16], delta: Delta
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint16]]:
        """Check all of the delta, then list what it changes."""
        return _core.topk_unpack(
            base,
            count=delta.count,
            block_elements=delta.block_elements,
            entries=delta.entries,
            payload=delta.payload,
        )

    def digest(
        self, bits: npt.NDArray[np.uint16], *, first_index: int, seed: int
    ) -> tuple[int, int]:
        """Add up the words."""
        return _core.digest(bits, first_index=first_index, seed=seed, isa=self._isa)


def backend_of(tensor: TensorBits) -> Backend:
    """Return who computes where `tensor` is.

    Raises:
        InvalidArgument: nobody does.
        Unavailable: its GPU has no driver that rose can use.
    """
    if tensor.device == CPU:
        return HostBackend(isa=lowered_isa(read_environment().isa))
    if not tensor.device.startswith("cuda"):
        raise InvalidArgument(
            f"{tensor.name} is on {tensor.device}: transfer computes on CPUs and GPUs, pass .cpu()"
        )
    # Here, because it imports torch, and Triton or the driver.
    gpu = import_module("rose.transfer.gpu")
    return cast("Backend", gpu.gpu_backend(tensor.bits))


def lowered_isa(wanted: str | None) -> str | None:
    """Return the instruction set to use when at most `wanted` may be used; None for the best."""
    if wanted is None:
        return None
    if wanted not in ISAS:
        raise InvalidArgument(f"ROSE_ISA={wanted}: choose {', '.join(ISAS[:-1])} or {ISAS[-1]}")
    return wanted if wanted in _core.isa_names() else None
