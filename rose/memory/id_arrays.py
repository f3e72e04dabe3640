"""What arrays of block ids and of keys may be: types only, for the stub of the extension."""

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt


class HostTensor(Protocol):
    """Anything with DLPack in host memory, as a torch tensor on the CPU."""

    def __dlpack__(self) -> object:
        """Return a capsule with the bytes, without a copy."""

    def __dlpack_device__(self) -> tuple[Any, int]:
        """Return the kind of device and its number."""


# int32 in host memory, written in place.
Ints: TypeAlias = "npt.NDArray[np.int32] | HostTensor"
Ids: TypeAlias = "Sequence[int] | npt.NDArray[np.int32] | HostTensor"
# 16 bytes each: one by one, or all of them side by side.
Keys: TypeAlias = "Sequence[bytes] | bytes | npt.NDArray[Any]"
