"""The delta codec: pack what changed, apply it, undo it, and tell whether both sides agree.

Every function looks at bits: a tensor's shape and the meaning of its elements change nothing, but
for top-k, which measures changes of bf16. Tensors may be boxes of larger ones, with any strides
that are not negative; the order of their elements is row-major. The formats are in
`docs/protocol.md`.

`stream` is where work on a GPU goes: a stream of torch or its handle, by default torch's current
one. On the CPU it says nothing.
"""

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rose import _core
from rose.errors import CorruptData, InvalidArgument
from rose.transfer.codec.backend import AGE_LIMIT, backend_of
from rose.transfer.codec.delta import BLOCK_ELEMENTS, Delta
from rose.transfer.codec.tensor import TensorBits, bits_of, check_bfloat16, check_pair

_WORD: Final = 1 << 64
# Of the smallest normal number: smaller changes have key 0, as no change has.
_LEAST_KEY: Final = 1 << 7
_THREADS_MAX: Final = 256


def delta_pack(
    new: Any,
    shadow: Any,
    *,
    block_elements: int = BLOCK_ELEMENTS[0],
    threads: int = 1,
    base_digest: tuple[int, int] | None = None,
    stream: Any = None,
) -> Delta:
    """Pack what differs between `new` and `shadow`, and make `shadow` equal to `new`.

    Args:
        new: the fresh weights.
        shadow: what the receiver is known to hold; written in place. On an error it is unchanged.
        block_elements: 65,536, or 16,384 where more than about 1 % changes.
        threads: of a CPU; any number makes the same delta.
        base_digest: of the shadow, where the caller knows it, as from the delta before. Then most
            elements are compared and not digested, which is faster; it is taken on trust, and a
            wrong one makes a delta whose digests are wrong.
        stream: of a GPU.

    Raises:
        InvalidArgument: the tensors are not two of a kind, or share elements in memory.
        OutOfMemory: there is no room for the delta.
    """
    one, other = _versions(new, shadow, stream)
    backend = backend_of(one, stream)
    _check_block_elements(block_elements)
    _check_threads(threads)
    check_base_digest(base_digest)
    return backend.delta_pack(
        one.bits,
        other.bits,
        block_elements=block_elements,
        threshold=0,
        threads=threads,
        base_digest=base_digest,
    )


def delta_apply(
    weights: Any, delta: Delta, *, undo: bool = False, verify: bool = False, stream: Any = None
) -> None:
    """Change `weights` in place, from the version the delta was made from to the next one, or back.

    Nothing is changed unless the whole delta is well formed.

    Args:
        weights: changed in place.
        delta: what to add to them.
        undo: take it back, which gives the same bits back whatever they were.
        verify: refuse weights that are not the version the delta was made from, or, to undo it, the
            one it makes. On a CPU that is proven for the words that it touches, and the others are
            not read; on a GPU all are.
        stream: of a GPU.

    Raises:
        InvalidArgument: number or width of the elements differ, or the weights cannot be written
            to.
        CorruptData: the delta is not well formed, and the sentence names its block; or the weights
            are not those it is for.
    """
    tensor = bits_of("weights", weights, is_written=True, stream=stream)
    backend_of(tensor, stream).delta_apply(tensor.bits, delta, undo=undo, verify=verify)


def delta_check(delta: Delta) -> None:
    """Look whether a delta can be applied to weights of its size.

    Raises:
        CorruptData: it is not well formed; the sentence names its block.
    """
    _core.delta_check(delta)


def delta_merge(first: Delta, second: Delta) -> Delta:
    """Return the delta that does what `first` and then `second` do.

    It takes time by what they change, not by how many elements there are. The table and payload
    are those that a pack of both steps at once would give.

    Raises:
        InvalidArgument: they are not of the same array, or have blocks of two sizes.
        CorruptData: `second` was not made from what `first` makes, or one is not well formed.
    """
    if first.digest != second.base_digest:
        raise CorruptData("the second delta was not made from what the first one makes")
    entries, payload = _core.delta_merge(first, second)
    return Delta(
        first.count,
        first.block_elements,
        first.width,
        entries,
        payload,
        first.base_digest,
        second.digest,
    )


def topk_pack(
    new: Any,
    shadow: Any,
    *,
    budget: int | None = None,
    least: float | None = None,
    ages: Any = None,
    age_limit: int = AGE_LIMIT,
    block_elements: int = BLOCK_ELEMENTS[0],
    threads: int = 1,
    stream: Any = None,
) -> Delta:
    """Pack the largest changes only, within a budget, and move `shadow` to them.

    What was not sent stays a difference between `new` and `shadow`, so the next delta has it. The
    digest is that of `shadow` after packing: of what the receiver will hold. So `shadow` is the
    behaviour policy that its rollouts follow, and what importance weights are taken against.

    Args:
        new: the fresh weights, bf16 or its bits.
        shadow: what the receiver is known to hold; written in place.
        budget: elements to send; changes of one size are sent together or not at all. What is too
            small to tell from none, as among subnormals, is sent when it is due only.
        least: the smallest change that is sent, cut to the next bf16 below; > 0. Either this or
            `budget` is given.
        ages: uint8 in the shape of `new`, zeros at first: for how many packs in a row each element
            was left unsent; moved on in place. None where that does not matter.
        age_limit: an element of that age is sent whatever its size, and whatever the budget.
        block_elements: as for `delta_pack`.
        threads: as for `delta_pack`.
        stream: of a GPU.

    Raises:
        InvalidArgument: as for `delta_pack`, or the elements are no bf16.
        OutOfMemory: there is no room for the delta.
    """
    one, other = _versions(new, shadow, stream)
    check_bfloat16(one)
    check_bfloat16(other)
    _check_block_elements(block_elements)
    _check_threads(threads)
    if not 0 < age_limit <= AGE_LIMIT:
        raise InvalidArgument(f"age_limit {age_limit}: choose 1 to {AGE_LIMIT}")
    aged = None if ages is None else _ages(ages, one, stream)
    backend = backend_of(one, stream)
    if (budget is None) == (least is None):
        raise InvalidArgument("give one of budget, in elements, and least")
    if least is not None:
        threshold = _key_of(least)
    elif budget is not None:
        if not 0 <= budget < _WORD:
            raise InvalidArgument(f"budget {budget} must be a number of elements, 0 or more")
        threshold = backend.topk_threshold(
            one.bits, other.bits, budget=budget, ages=aged, age_limit=age_limit, threads=threads
        )
    return backend.delta_pack(
        one.bits,
        other.bits,
        block_elements=block_elements,
        threshold=threshold,
        ages=aged,
        age_limit=age_limit,
        threads=threads,
    )


def _key_of(least: float) -> int:
    """Return the key of a change: the upper half of its fp32, and at least that of a normal one."""
    if not (least > 0 and math.isfinite(least)):
        raise InvalidArgument(f"least {least}: choose a number above 0")
    with np.errstate(over="ignore"):
        bits = int(np.float32(least).view(np.uint32))
    return max(bits >> 16, _LEAST_KEY)


def topk_unpack(
    delta: Delta, base: Any, *, stream: Any = None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
    """List what a delta changes; `base`, which stays as it is, is the version it was made from.

    Returns:
        (changed,) int64 positions in the flattened tensor, ascending; and (changed,) uint8, uint16
        or uint32, the bits that the elements there become.

    Raises:
        InvalidArgument: number or width of the elements differ.
        CorruptData: the delta is not well formed; the sentence names its block.
    """
    tensor = bits_of("base", base, stream=stream)
    return backend_of(tensor, stream).topk_unpack(tensor.bits, delta)


def digest(tensor: Any, *, threads: int = 1, stream: Any = None) -> tuple[int, int]:
    """Digest a tensor on so many threads of a CPU; it finds faults, not attackers."""
    bits = bits_of("tensor", tensor, stream=stream)
    _check_threads(threads)
    backend = backend_of(bits, stream)
    return backend.digest(bits.bits, first_index=0, seed=0, threads=threads)


def check_base_digest(base_digest: tuple[int, int] | None) -> None:
    """Refuse what is no digest.

    Raises:
        InvalidArgument: it is given and not two numbers of 64 bits.
    """
    if base_digest is not None and not all(0 <= part < _WORD for part in base_digest):
        raise InvalidArgument(f"base_digest {base_digest} must be two numbers of 64 bits")


def _versions(new: Any, shadow: Any, stream: Any) -> tuple[TensorBits, TensorBits]:
    one = bits_of("new", new, stream=stream)
    other = bits_of("shadow", shadow, is_written=True, stream=stream)
    check_pair(one, other)
    return one, other


def _ages(ages: Any, like: TensorBits, stream: Any) -> Any:
    aged = bits_of("ages", ages, is_written=True, stream=stream)
    if aged.dtype != "uint8" or aged.shape != like.shape or aged.device != like.device:
        raise InvalidArgument(
            f"ages of {aged.dtype} and {aged.shape} on {aged.device} must be of uint8 and "
            f"{like.shape} on {like.device}"
        )
    return aged.bits


def _check_threads(threads: int) -> None:
    if not 0 < threads <= _THREADS_MAX:
        raise InvalidArgument(f"threads {threads}: choose 1 to {_THREADS_MAX}")


def _check_block_elements(block_elements: int) -> None:
    if block_elements not in BLOCK_ELEMENTS:
        raise InvalidArgument(f"block_elements {block_elements}: choose 65536 or 16384")
