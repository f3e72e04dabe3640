"""The delta codec: pack changes, apply and undo them, and compare digests.

Every function works on bits: shape and dtype do not affect results, except in top-k, which measures
changes of bf16. A tensor may be a slice of a larger tensor, with any strides >= 0; its elements are
taken in row-major order. The formats are in `docs/protocol.md`.

`stream` is the GPU stream of the work: a torch stream or its handle, by default torch's current
stream. It has no effect on the CPU.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, replace
from typing import Any, Final, TypeVar, overload

import numpy as np
import numpy.typing as npt

from rose import _core
from rose.errors import CorruptData, InvalidArgument
from rose.kernels.deltas import AGE_LIMIT, PackedDelta
from rose.transfer.codec.backend import codec_of, host_isa
from rose.transfer.codec.box import Box, overlapping
from rose.transfer.codec.delta import BLOCK_ELEMENTS, ClassRule, Delta, has_strat
from rose.transfer.codec.tensor import (
    TensorBits,
    bits_of,
    check_bfloat16,
    check_pair,
    is_units,
    units_of,
)

Name = TypeVar("Name")

_WORD: Final = 1 << 64
# Key of the smallest normal number: smaller changes have key 0, as unchanged elements do.
_LEAST_KEY: Final = 1 << 7
_THREADS_MAX: Final = 256


@overload
def delta_pack(
    new: Mapping[Name, Any],
    shadow: Mapping[Name, Any],
    *,
    block_elements: int = ...,
    threads: int = ...,
    base_digest: Mapping[Name, tuple[int, int]] | None = ...,
    stream: Any = ...,
) -> dict[Name, Delta]: ...


@overload
def delta_pack(
    new: Any,
    shadow: Any,
    *,
    block_elements: int = ...,
    threads: int = ...,
    base_digest: tuple[int, int] | None = ...,
    stream: Any = ...,
) -> Delta: ...


def delta_pack(
    new: Any,
    shadow: Any,
    *,
    block_elements: int = BLOCK_ELEMENTS[0],
    threads: int = 1,
    base_digest: Any = None,
    stream: Any = None,
) -> Any:
    """Pack the difference between `new` and `shadow`, and make `shadow` equal to `new`.

    With two mappings of the same names, one call packs all tensors. The tensors must be on one
    device and share no memory. On a GPU the launches follow each other without a wait, and one copy
    fetches all deltas into one shared array. The call temporarily takes as much device memory
    as all tensors together.

    Args:
        new: the fresh weights; or a mapping of names to tensors.
        shadow: weights that the receiver holds; written in place. On an error it is unchanged.
        block_elements: elements per delta block: 65,536, or 16,384 if more than about 1 % changes.
        threads: CPU threads; any number makes the same delta.
        base_digest: digest of the shadow if known, such as the digest of the previous delta. Then
            only changed elements are digested, which is faster. It is not verified: a wrong value
            makes a delta with wrong digests. With mappings, a mapping of the known digests.
        stream: GPU stream.

    Returns:
        The delta; for mappings, the deltas by name.

    Raises:
        InvalidArgument: shape, dtype or device of the tensors differ, or they overlap in memory.
        OutOfMemory: no memory is left for the delta.
    """
    _check_block_elements(block_elements)
    _check_threads(threads)
    if isinstance(new, Mapping):
        names = _names_of(new, shadow)
        bases = [(base_digest or {}).get(name) for name in new]
        for base in bases:
            check_base_digest(base)
        pairs = [_versions(new[name], shadow[name], stream, at=at) for name, at in names.items()]
        if not pairs:
            return {}
        _check_together([one for _, one in pairs])
    else:
        names, bases, pairs = {None: ""}, [base_digest], [_versions(new, shadow, stream)]
        check_base_digest(base_digest)
    with codec_of(pairs[0][0], stream) as codec:
        packed = codec.delta_pack(
            [one.bits for one, _ in pairs],
            [one.bits for _, one in pairs],
            block_elements=block_elements,
            base_digests=bases,
            threads=threads,
        )
    deltas = [
        _delta_of(one, delta, block_elements) for (one, _), delta in zip(pairs, packed, strict=True)
    ]
    return dict(zip(names, deltas, strict=True)) if isinstance(new, Mapping) else deltas[0]


def delta_apply(
    weights: Any,
    delta: Delta | Mapping[Any, Delta],
    *,
    undo: bool = False,
    verify: bool = False,
    stream: Any = None,
) -> None:
    """Change `weights` in place from the base of the delta to its result, or back.

    Nothing is changed unless the whole delta is well formed. A GPU checks each block while it
    applies the delta, and restores the weights if a block is malformed. For that the call waits for
    the stream, unless the delta is marked as checked (`Delta.is_checked`).

    With two mappings of the same names, one call applies all deltas or none. The tensors must be on
    one device and share no memory.

    Args:
        weights: tensor that is changed in place; or a mapping of names to tensors.
        delta: delta to apply; or a mapping of names to deltas.
        undo: whether to undo the delta, which restores the original bits.
        verify: whether to refuse weights that are not the base of the delta, or with `undo` its
            result. Only the words that the delta changes are read and verified; a GPU without the
            embedded kernels reads all. On a GPU the call waits for the stream.
        stream: GPU stream.

    Raises:
        InvalidArgument: number or width of the elements differ, or the weights are read-only.
        CorruptData: the delta is not well formed (the message names the block), or the weights are
            another version.
    """
    if isinstance(delta, Mapping):
        names = _names_of(weights, delta)
        tensors = [
            bits_of(f"weights{at}", weights[name], is_written=True, stream=stream)
            for name, at in names.items()
        ]
        if not tensors:
            return
        _check_together(tensors)
        deltas, labels = [delta[name] for name in names], [one.name for one in tensors]
    elif is_units(weights) and not verify:
        _core.delta_apply(weights, delta, undo=undo, is_checked=delta.is_checked)
        return
    else:
        tensors = [bits_of("weights", weights, is_written=True, stream=stream)]
        deltas, labels = [delta], [""]
    with codec_of(tensors[0], stream) as codec:
        codec.delta_apply([one.bits for one in tensors], deltas, labels, undo=undo, verify=verify)


def delta_check(delta: Delta) -> None:
    """Check that a delta can be applied to weights of its size.

    Raises:
        CorruptData: the delta is not well formed; the message names the block.
    """
    _core.delta_check(delta)


def delta_merge(first: Delta, second: Delta) -> Delta:
    """Return the delta that has the effect of `first` followed by `second`.

    The time grows with the number of changes, not with the number of elements. Table and payload
    are the same as those of one pack over both steps.

    Raises:
        InvalidArgument: array size, width or block size differ.
        CorruptData: the base of `second` is not the result of `first`, or a delta is malformed.
    """
    if first.digest != second.base_digest:
        raise CorruptData("the base of the second delta is not the result of the first")
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
    base_digest: tuple[int, int] | None = None,
    stream: Any = None,
) -> Delta:
    """Pack only the largest changes, within a budget, and apply them to `shadow`.

    Unsent changes stay differences between `new` and `shadow`, so the next delta can send them. The
    delta's digest is the digest of `shadow` after packing, and of the receiver's weights after it
    applies the delta. So `shadow` is the behaviour policy of the receiver's rollouts, against which
    importance weights are computed.

    Args:
        new: the fresh weights, bf16 or its bits.
        shadow: weights that the receiver holds; written in place.
        budget: largest number of elements to send; changes of equal size are sent together or not
            at all. Changes below the smallest normal number are sent only at the age limit.
        least: smallest change to send, > 0, rounded down to bf16. Pass exactly one of `budget` and
            `least`.
        ages: uint8 in the shape of `new`, zeros at first: number of consecutive packs that left an
            element's change unsent; updated in place. None to choose by size alone.
        age_limit: age at which a change is sent whatever its size, even beyond the budget.
        block_elements: see `delta_pack`.
        threads: see `delta_pack`.
        base_digest: see `delta_pack`. With it and `least`, a GPU packs with one launch.
        stream: GPU stream.

    Raises:
        InvalidArgument: as for `delta_pack`, or the elements are not bf16.
        OutOfMemory: no memory is left for the delta.
    """
    one, other = _versions(new, shadow, stream)
    check_bfloat16(one)
    check_bfloat16(other)
    _check_block_elements(block_elements)
    _check_threads(threads)
    check_base_digest(base_digest)
    if not 0 < age_limit <= AGE_LIMIT:
        raise InvalidArgument(f"age_limit {age_limit}: choose 1 to {AGE_LIMIT}")
    aged = None if ages is None else _ages(ages, one, stream)
    if (budget is None) == (least is None):
        raise InvalidArgument("pass exactly one of budget (in elements) and least")
    if budget is not None and not 0 <= budget < _WORD:
        raise InvalidArgument(f"budget {budget} must be a number of elements, 0 or more")
    with codec_of(one, stream) as codec:
        if least is not None:
            threshold = _key_of(least)
        elif budget is not None:
            threshold = codec.topk_threshold(
                one.bits, other.bits, budget=budget, ages=aged, age_limit=age_limit, threads=threads
            )
        (packed,) = codec.delta_pack(
            [one.bits],
            [other.bits],
            block_elements=block_elements,
            base_digests=[base_digest],
            threshold=threshold,
            ages=aged,
            age_limit=age_limit,
            threads=threads,
        )
    return _delta_of(one, packed, block_elements)


def _delta_of(tensor: TensorBits, packed: PackedDelta, block_elements: int) -> Delta:
    return Delta(tensor.units * math.prod(tensor.shape), block_elements, tensor.width, *packed)


def _key_of(least: float) -> int:
    """Return the key of a change: the upper half of its fp32, at least `_LEAST_KEY`."""
    if not (least > 0 and math.isfinite(least)):
        raise InvalidArgument(f"least {least}: choose a finite number above 0")
    with np.errstate(over="ignore"):
        bits = int(np.float32(least).view(np.uint32))
    return max(bits >> 16, _LEAST_KEY)


def topk_unpack(
    delta: Delta, base: Any, *, stream: Any = None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
    """List the changes of a delta, given the base weights; `base` is only read.

    Returns:
        (changed,) int64 positions in the flattened tensor, ascending; and (changed,) uint8, uint16
        or uint32, the new bits of these elements.

    Raises:
        InvalidArgument: number or width of the elements differ.
        CorruptData: the delta is not well formed; the message names the block.
    """
    tensor = bits_of("base", base, stream=stream)
    with codec_of(tensor, stream) as codec:
        return codec.topk_unpack(tensor.bits, delta)


def digest(tensor: Any, *, threads: int = 1, stream: Any = None) -> tuple[int, int]:
    """Return the digest of a tensor. A digest detects faults, not attacks.

    Args:
        tensor: see `delta_pack`; only read.
        threads: CPU threads; any number gives the same digest.
        stream: GPU stream.

    Raises:
        InvalidArgument: dtype, strides or library of the tensor are not supported.
    """
    _check_threads(threads)
    if is_units(tensor):
        return _core.digest(tensor, isa=host_isa(), threads=threads)
    bits = bits_of("tensor", tensor, stream=stream)
    with codec_of(bits, stream) as codec:
        return codec.digest(bits.bits, threads=threads)


def digests(tensors: Sequence[Any]) -> list[tuple[int, int]]:
    """Return the digests of tensors; one call for all is fast for many small ones."""
    if all(is_units(one) for one in tensors):
        return _core.digests(list(tensors), isa=host_isa())
    return [digest(one) for one in tensors]


def pack_tiles(
    new: Sequence[Any],
    shadow: Sequence[Any],
    *,
    base_digests: Sequence[tuple[int, int]],
    rule: ClassRule | None = None,
    threads: int = 1,
) -> tuple[dict[int, Delta], dict[int, Delta]]:
    """Pack many tensors in host memory with one call; unchanged tensors cost a comparison.

    Args:
        new: the fresh weights.
        shadow: weights that the receivers hold, of the same sizes; written in place. On an error
            none is changed. They share no memory, and with a rule they are contiguous.
        base_digests: digests of the shadows.
        rule: class rule of the wire encoding; None for none.
        threads: CPU threads, which divide the tensors among them.

    Returns:
        The deltas of the tensors that changed, by index; and their wire encodings, of those that
        the rule makes smaller.

    Raises:
        InvalidArgument: number or width of the elements differ, a tensor is not in host memory, or
            the rule is invalid.
        OutOfMemory: no memory is left for the deltas.
    """
    fresh = [units_of("new", one) for one in new]
    held = [units_of("shadow", one) for one in shadow]
    block_elements = BLOCK_ELEMENTS[0]
    packed = _core.pack_tiles(
        fresh,
        held,
        list(base_digests),
        block_elements=block_elements,
        rule=None if rule is None else astuple(rule),
        threads=threads,
        isa=host_isa(),
    )
    deltas: dict[int, Delta] = {}
    encoded: dict[int, Delta] = {}
    for at, parts in enumerate(packed):
        if parts is None:
            continue
        one, plain, wire = held[at], parts[:4], parts[4:]
        deltas[at] = delta = Delta(one.size, block_elements, 8 * one.itemsize, *plain)
        if rule is not None and has_strat(wire[0]):
            encoded[at] = replace(delta, entries=wire[0], payload=wire[1], rule=rule)
    return deltas, encoded


def check_base_digest(base_digest: tuple[int, int] | None) -> None:
    """Check that a digest, if given, is two 64-bit numbers.

    Raises:
        InvalidArgument: a part of the digest is below 0 or has more than 64 bits.
    """
    if base_digest is not None and not all(0 <= part < _WORD for part in base_digest):
        raise InvalidArgument(f"base_digest {base_digest} must be two numbers of 64 bits")


def _names_of(one: Any, other: Any) -> dict[Any, str]:
    """Return the label of each tensor in messages; refuse mappings with different names."""
    if not (isinstance(one, Mapping) and isinstance(other, Mapping)) or one.keys() != other.keys():
        raise InvalidArgument(
            "if one argument is a mapping, the other must be a mapping with the same names"
        )
    return {name: f"[{name!r}]" for name in one}


def _check_together(tensors: Sequence[TensorBits]) -> None:
    """Refuse tensors that are on several devices or share memory: one call cannot write them."""
    for one in tensors:
        if one.device != tensors[0].device:
            raise InvalidArgument(
                f"{tensors[0].name} is on {tensors[0].device} and {one.name} on {one.device}: "
                "make a call for each device"
            )
    if found := overlapping([Box.of(one.bits) for one in tensors]):
        first, second = (tensors[at].name for at in found)
        raise InvalidArgument(f"{first} and {second} share memory: pass tied tensors once")


def _versions(new: Any, shadow: Any, stream: Any, *, at: str = "") -> tuple[TensorBits, TensorBits]:
    one = bits_of(f"new{at}", new, stream=stream)
    other = bits_of(f"shadow{at}", shadow, is_written=True, stream=stream)
    check_pair(one, other)
    # The core finds an overlap in host memory itself, and other devices are refused.
    if one.device.startswith("cuda") and Box.of(one.bits).meets(Box.of(other.bits)):
        raise InvalidArgument(
            f"{one.name} and {other.name} overlap in memory: pass two separate tensors"
        )
    return one, other


def _ages(ages: Any, like: TensorBits, stream: Any) -> Any:
    aged = bits_of("ages", ages, is_written=True, stream=stream)
    if aged.dtype != "uint8" or aged.shape != like.shape or aged.device != like.device:
        raise InvalidArgument(
            f"ages have dtype {aged.dtype} and shape {aged.shape} on {aged.device}: they must have "
            f"uint8 and {like.shape} on {like.device}"
        )
    return aged.bits


def _check_threads(threads: int) -> None:
    if not 0 < threads <= _THREADS_MAX:
        raise InvalidArgument(f"threads {threads}: choose 1 to {_THREADS_MAX}")


def _check_block_elements(block_elements: int) -> None:
    if block_elements not in BLOCK_ELEMENTS:
        raise InvalidArgument(f"block_elements {block_elements}: choose 65536 or 16384")
