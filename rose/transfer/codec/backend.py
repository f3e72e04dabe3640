"""Who computes: one back end per kind of device, all with the same bits."""

from importlib import import_module
from typing import Any, Final, Protocol, cast

import numpy as np
import numpy.typing as npt

from rose import _core
from rose.config import read_environment
from rose.errors import InvalidArgument
from rose.transfer.codec.delta import Delta
from rose.transfer.codec.tensor import CPU, TensorBits

# Sent at the latest when it was left unsent so many packs in a row.
AGE_LIMIT: Final = 255

ISAS: Final = ("portable", "avx2", "avx512")


class Backend(Protocol):
    """The codec on one kind of device; takes `TensorBits.bits` that live there, with any strides.

    `ages` are uint8 in the shape of the weights, or None; `age_limit` says when one is due.
    """

    def delta_pack(
        self,
        new: Any,
        shadow: Any,
        *,
        block_elements: int,
        threshold: int,
        ages: Any = None,
        age_limit: int = AGE_LIMIT,
        threads: int = 1,
        base_digest: tuple[int, int] | None = None,
    ) -> Delta:
        """Pack what is sent, and move the shadow there and the ages on."""
        ...

    def measure(
        self,
        new: Any,
        shadow: Any,
        *,
        block_elements: int,
        threshold: int,
        ages: Any = None,
        age_limit: int = AGE_LIMIT,
        threads: int = 1,
    ) -> int:
        """Return how many words the payload would have; nothing is changed."""
        ...

    def delta_apply(
        self,
        weights: Any,
        delta: Delta,
        *,
        undo: bool,
        verify: bool = False,
    ) -> None:
        """Change the weights, or change them back; nothing unless all of the delta is sound."""
        ...

    def topk_threshold(
        self,
        new: Any,
        shadow: Any,
        *,
        budget: int,
        ages: Any = None,
        age_limit: int = AGE_LIMIT,
        threads: int = 1,
    ) -> int:
        """Return the smallest threshold with which at most `budget` elements are sent."""
        ...

    def topk_unpack(
        self, base: Any, delta: Delta
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
        """Return what changes and what it becomes."""
        ...

    def digest(
        self, bits: Any, *, first_index: int, seed: int, threads: int = 1
    ) -> tuple[int, int]:
        """Return the digest of a part of a tensor."""
        ...


class HostBackend:
    """The C++ core.

    Args:
        isa: the instruction set, one of `ISAS` that this machine has; None for its best.
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
        """Pack in one pass over both arrays, on so many threads."""
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

    def measure(
        self,
        new: npt.NDArray[Any],
        shadow: npt.NDArray[Any],
        *,
        block_elements: int,
        threshold: int,
        ages: npt.NDArray[np.uint8] | None = None,
        age_limit: int = AGE_LIMIT,
        threads: int = 1,
    ) -> int:
        """Find and plan as a pack does, and write nothing."""
        return _core.delta_measure(
            new,
            shadow,
            block_elements=block_elements,
            threshold=threshold,
            ages=ages,
            age_limit=age_limit,
            isa=self._isa,
            threads=threads,
        )

    def delta_apply(
        self,
        weights: npt.NDArray[Any],
        delta: Delta,
        *,
        undo: bool,
        verify: bool = False,
    ) -> None:
        """Check all of the delta, then work on what changes only."""
        if verify:
            _core.delta_verify(
                weights, delta, base_digest=delta.base_digest, digest=delta.digest, undo=undo
            )
        _core.delta_apply(weights, delta, undo=undo, is_checked=delta.is_checked)

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
        """Count the changes by size and take the largest."""
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
        """Check all of the delta, then list what it changes."""
        return _core.topk_unpack(base, delta)

    def digest(
        self, bits: npt.NDArray[Any], *, first_index: int, seed: int, threads: int = 1
    ) -> tuple[int, int]:
        """Add up the words."""
        return _core.digest(
            bits, first_index=first_index, seed=seed, isa=self._isa, threads=threads
        )


def backend_of(tensor: TensorBits, stream: Any = None) -> Backend:
    """Return who computes where `tensor` is, on `stream` if that is a GPU.

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
    gpu = import_module("rose.transfer.codec.gpu")
    return cast("Backend", gpu.gpu_backend(tensor.bits, stream))


def lowered_isa(wanted: str | None) -> str | None:
    """Return the instruction set to use when at most `wanted` may be used; None for the best."""
    if wanted is None:
        return None
    if wanted not in ISAS:
        raise InvalidArgument(f"ROSE_ISA={wanted}: choose {', '.join(ISAS[:-1])} or {ISAS[-1]}")
    return wanted if wanted in _core.isa_names() else None
