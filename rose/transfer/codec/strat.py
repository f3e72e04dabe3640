"""STRAT: a delta in fewer bytes for the wire, coded relative to the receiver's old weights.

The format is in `docs/protocol.md`, "STRAT". Only `strat_unpack` reads the output of `strat_pack`:
a delta with STRAT blocks cannot be applied, undone or merged.
"""

from dataclasses import astuple, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rose import _core
from rose.errors import CorruptData, InvalidArgument
from rose.transfer.codec.backend import host_isa
from rose.transfer.codec.delta import BLOCK_ELEMENTS, ClassRule, Delta, has_strat
from rose.transfer.codec.operations import check_base_digest, digest
from rose.transfer.codec.tensor import CPU, TensorBits, bits_of, check_pair

_THREADS_MAX: Final = 64


def strat_pack(
    delta: Delta, weights: Any, rule: ClassRule, *, is_after: bool = False, threads: int = 1
) -> Delta:
    """Recode a delta for the wire: blocks that get smaller become STRAT blocks, others stay.

    Args:
        delta: delta from `delta_pack`.
        weights: base weights of the delta. Other weights give a wrong encoding without an error.
        rule: class rule from `class_rule`.
        is_after: whether `weights` are the result of the delta instead of its base. After packing,
            the shadow is the result.
        threads: CPU threads, 1 to 64; any number makes the same encoding.

    Returns:
        The wire encoding; the delta itself if no block gets smaller.

    Raises:
        InvalidArgument: the delta is STRAT-encoded already, or size or width of the weights differ.
        CorruptData: the delta is not well formed.
        OutOfMemory: no memory is left for the encoding.
    """
    if delta.rule is not None:
        raise InvalidArgument("the delta has the wire encoding already: pass the original delta")
    if (fault := rule.fault(delta.width)) is not None:
        raise InvalidArgument(f"the class rule is invalid: {fault}")
    entries, payload = _core.strat_pack(
        _row("weights", weights, delta),
        delta,
        astuple(rule),
        is_after=is_after,
        threads=threads,
        isa=host_isa(),
    )
    if not has_strat(entries):
        return delta
    return replace(delta, entries=entries, payload=payload, rule=rule)


def wire_pack(
    new: Any,
    shadow: Any,
    rule: ClassRule,
    *,
    block_elements: int = BLOCK_ELEMENTS[0],
    threads: int = 1,
    base_digest: tuple[int, int] | None = None,
) -> tuple[Delta, Delta]:
    """Do `delta_pack` and `strat_pack` in one pass over the weights.

    Both tensors must be in host memory, and the shadow contiguous; for other tensors, call the two
    functions.

    Args:
        new: the fresh weights.
        shadow: weights that the receiver holds; written in place. On an error it is unchanged.
        rule: class rule from `class_rule`.
        block_elements: see `delta_pack`.
        threads: CPU threads, 1 to 64; any number makes the same deltas.
        base_digest: digest of the shadow, see `delta_pack`.

    Returns:
        The delta, which can undo the change of the shadow, and its wire encoding.

    Raises:
        InvalidArgument: shape, dtype or device of the tensors differ, they overlap in memory or
            are not in host memory, the shadow is not contiguous, or the rule is invalid.
        OutOfMemory: no memory is left for both deltas.
    """
    one, other = bits_of("new", new), bits_of("shadow", shadow, is_written=True)
    check_pair(one, other)
    if not 1 <= threads <= _THREADS_MAX:
        raise InvalidArgument(f"threads {threads}: choose 1 to {_THREADS_MAX}")
    if one.device != CPU:
        raise InvalidArgument(f"new is on {one.device}: use delta_pack and strat_pack there")
    if (fault := rule.fault(one.width)) is not None:
        raise InvalidArgument(f"the class rule is invalid: {fault}")
    check_base_digest(base_digest)
    entries, payload, digest_before, digest_after, encoded_entries, encoded_payload = (
        _core.wire_pack(
            one.bits,
            other.bits,
            astuple(rule),
            block_elements=block_elements,
            base_digest=base_digest,
            threads=threads,
            isa=host_isa(),
        )
    )
    count, width = other.bits.size, other.width
    delta = Delta(count, block_elements, width, entries, payload, digest_before, digest_after)
    if not has_strat(encoded_entries):
        return delta, delta
    return delta, replace(delta, entries=encoded_entries, payload=encoded_payload, rule=rule)


def strat_unpack(encoded: Delta, base: Any, *, threads: int = 1) -> Delta:
    """Return the delta that `strat_pack` encoded, bit for bit.

    Args:
        encoded: received wire encoding; a delta without STRAT blocks is returned unchanged.
        base: base weights of the delta; only read.
        threads: CPU threads, 1 to 64.

    Raises:
        InvalidArgument: number or width of the elements of `base` differ.
        CorruptData: the weights are not the base of the delta, or the encoding is not well formed
            (the message names the block).
        OutOfMemory: no memory is left for the delta.
    """
    if encoded.rule is None:
        return encoded
    row = _row("base", base, encoded)
    if digest(row) != encoded.base_digest:
        raise CorruptData("the weights are not the base of the delta: their digest differs")
    entries, payload = _core.strat_unpack(
        row,
        encoded,
        astuple(encoded.rule),
        threads=threads,
        isa=host_isa(),
    )
    return replace(encoded, entries=entries, payload=payload, rule=None)


def host_row(tensor: TensorBits) -> npt.NDArray[Any]:
    """Return a tensor as one row in host memory, without a copy if it is there and contiguous."""
    bits = tensor.bits
    if tensor.device != CPU:
        bits = bits.cpu().numpy()
    row: npt.NDArray[Any] = np.ascontiguousarray(bits).reshape(-1)
    return row.view(np.dtype(f"u{row.itemsize}"))


def _row(name: str, tensor: Any, delta: Delta) -> npt.NDArray[Any]:
    row = host_row(bits_of(name, tensor))
    if (len(row), 8 * row.itemsize) != (delta.count, delta.width):
        raise InvalidArgument(
            f"{name} must have {delta.count} elements of {delta.width} bits like the delta, "
            f"got {len(row)} of {8 * row.itemsize}"
        )
    return row
