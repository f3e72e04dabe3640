"""Deltas as the codecs of all devices take and return them, and the checks that they share."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from rose import _core
from rose.errors import CorruptData, InvalidArgument

AGE_LIMIT: Final = 255
"""Default and maximum of `age_limit`: top-k sends a change, however small, after this many packs
that did not send it."""

DeltaLike: TypeAlias = Any
"""A `rose.transfer.codec.delta.Delta`, which this lower room cannot import."""


class PackedDelta(NamedTuple):
    """The parts of a delta that a codec computes.

    Args:
        entries: (blocks,) uint64, the block table.
        payload: (words,) uint32, in table order.
        base_digest: digest of the shadow before packing.
        digest: digest of the shadow after packing.
    """

    entries: npt.NDArray[np.uint64]
    payload: npt.NDArray[np.uint32]
    base_digest: tuple[int, int]
    digest: tuple[int, int]


@contextmanager
def about(name: str) -> Iterator[None]:
    """Put the tensor's name, if it has one, before the message of an error."""
    try:
        yield
    except (CorruptData, InvalidArgument) as error:
        if not name:
            raise
        raise type(error)(f"{name}: {error}") from error


def check_all(deltas: Sequence[DeltaLike], names: Sequence[str]) -> None:
    """Check the deltas that are not marked as checked.

    Raises:
        CorruptData: a delta is not well formed; the message names its tensor and the block.
    """
    for delta, name in zip(deltas, names, strict=True):
        if not delta.is_checked:
            with about(name):
                _core.delta_check(delta)
