"""The delta codec: pack what changed, apply it, undo it, and tell whether both sides agree.

Every function looks at bits: a tensor's shape and the meaning of its elements change nothing, but
for top-k, which measures changes of bf16. The formats are in `docs/protocol.md`.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rose.errors import InvalidArgument
from rose.transfer.backend import backend_of
from rose.transfer.delta import BLOCK_ELEMENTS, Delta
from rose.transfer.tensor import TensorBits, bits_of, check_bfloat16, check_pair

_WORD: Final = 1 << 64


def delta_pack(new: Any, shadow: Any, *, block_elements: int = BLOCK_ELEMENTS[0]) -> Delta:
    """Pack what differs between `new` and `shadow`, and make `shadow` equal to `new`.

    Args:
        new: the fresh weights.
        shadow: what the receiver is known to hold; written in place. On an error it is unchanged.
        block_elements: 65,536, or 16,384 where more than about 1 % changes.

    Raises:
        InvalidArgument: the tensors are not two of a kind, or overlap in memory.
        OutOfMemory: there is no room for the delta.
    """
    one, other = _versions(new, shadow)
    backend = backend_of(one)
    _check_block_elements(block_elements)
    return backend.delta_pack(one.bits, other.bits, block_elements=block_elements, threshold=0)


def delta_apply(weights: Any, delta: Delta, *, undo: bool = False) -> None:
    """Change `weights` in place, from the version the delta was made from to the next one, or back.

    Nothing is changed unless the whole delta is well formed. Whether `weights` are the version it
    was made from is not looked at: compare `digest(weights)` with `delta.digest` afterwards.

    Raises:
        InvalidArgument: the number of elements differs, or the weights cannot be written to.
        CorruptData: the delta is not well formed; the sentence names its block.
    """
    tensor = bits_of("weights", weights, is_written=True)
    backend_of(tensor).delta_apply(tensor.bits, delta, undo=undo)


def topk_pack(
    new: Any, shadow: Any, *, budget: int, block_elements: int = BLOCK_ELEMENTS[0]
) -> Delta:
    """Pack the largest changes only, of at most `budget` elements, and move `shadow` to them.

    What was not sent stays a difference between `new` and `shadow`, so the next delta has it. The
    digest is that of `shadow` after packing: of what the receiver will hold.

    Args:
        new: the fresh weights, bf16 or its bits.
        shadow: what the receiver is known to hold; written in place.
        budget: elements to send; changes of one size are sent together or not at all.
        block_elements: as for `delta_pack`.

    Raises:
        InvalidArgument: as for `delta_pack`, or the elements are no bf16.
        OutOfMemory: there is no room for the delta.
    """
    one, other = _versions(new, shadow)
    check_bfloat16(one)
    check_bfloat16(other)
    backend = backend_of(one)
    _check_block_elements(block_elements)
    if not 0 <= budget < _WORD:
        raise InvalidArgument(f"budget {budget} must be a number of elements, 0 or more")
    threshold = backend.topk_threshold(one.bits, other.bits, budget=budget)
    return backend.delta_pack(
        one.bits, other.bits, block_elements=block_elements, threshold=threshold
    )


def topk_unpack(delta: Delta, base: Any) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint16]]:
    """List what a delta changes; `base`, which stays as it is, is the version it was made from.

    Returns:
        (changed,) int64 positions in the flattened tensor, ascending; and (changed,) uint16, the
        bits that the elements there become.

    Raises:
        InvalidArgument: the number of elements differs, or they are no bf16.
        CorruptData: the delta is not well formed; the sentence names its block.
    """
    tensor = bits_of("base", base)
    check_bfloat16(tensor)
    return backend_of(tensor).topk_unpack(tensor.bits, delta)


def digest(tensor: Any, *, first_index: int = 0, seed: int = 0) -> tuple[int, int]:
    """Digest a tensor, or the part of one that starts at element `first_index`.

    The digests of the parts add up, modulo 2^64 each, to that of the whole. It finds faults, not
    attackers.

    Args:
        tensor: the elements.
        first_index: a multiple of 4.
        seed: of the whole tensor, so that equal tensors can be told apart.

    Raises:
        InvalidArgument: `first_index` is no multiple of 4.
    """
    part = bits_of("tensor", tensor)
    for name, value in (("first_index", first_index), ("seed", seed)):
        if not 0 <= value < _WORD:
            raise InvalidArgument(f"{name} {value} must be a number of 64 bits")
    backend = backend_of(part)
    return backend.digest(part.bits, first_index=first_index, seed=seed)


def _versions(new: Any, shadow: Any) -> tuple[TensorBits, TensorBits]:
    one, other = bits_of("new", new), bits_of("shadow", shadow, is_written=True)
    check_pair(one, other)
    return one, other


def _check_block_elements(block_elements: int) -> None:
    if block_elements not in BLOCK_ELEMENTS:
        raise InvalidArgument(f"block_elements {block_elements}: choose 65536 or 16384")
