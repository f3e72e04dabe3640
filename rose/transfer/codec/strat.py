"""STRAT: a delta in fewer bytes for a link, coded by what the receiver knows of the old weights.

`docs/protocol.md`, "STRAT". Only `strat_unpack` reads what `strat_pack` made: a delta with STRAT
blocks is never applied, undone or merged as it is.
"""

from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rose import _core
from rose.config import read_environment
from rose.errors import CorruptData, InvalidArgument
from rose.transfer.codec.backend import lowered_isa
from rose.transfer.codec.delta import BLOCK_ELEMENTS, ClassRule, Delta
from rose.transfer.codec.operations import check_base_digest, digest
from rose.transfer.codec.tensor import CPU, TensorBits, bits_of, check_pair

_KIND: Final = np.uint64(15)
_STRAT: Final = np.uint64(4)
_THREADS_MAX: Final = 64


def strat_pack(
    delta: Delta, weights: Any, rule: ClassRule, *, is_after: bool = False, threads: int = 1
) -> Delta:
    """Recode a delta for a link: the blocks that get smaller become STRAT, the others stay.

    Args:
        delta: as `delta_pack` made it.
        weights: what it was made from. Others make a link that says something else.
        rule: as `class_rule` chose it.
        is_after: the weights are what the delta makes of that, as a shadow is once it was packed.
        threads: 1 to 64; any number makes the same link.

    Returns:
        The link; the delta itself where no block gets smaller.

    Raises:
        InvalidArgument: the delta is a link already, or the weights are of another size or width.
        CorruptData: the delta is not well formed.
        OutOfMemory: there is no room for the link.
    """
    if delta.rule is not None:
        raise InvalidArgument("the delta is for a link already: pack the one it was made of")
    if (fault := rule.fault(delta.width)) is not None:
        raise InvalidArgument(f"the class rule cannot be: {fault}")
    entries, payload = _core.strat_pack(
        _row("weights", weights, delta),
        delta,
        _fields(rule),
        is_after=is_after,
        threads=threads,
        isa=_isa(),
    )
    if not has_strat(entries):
        return delta
    return replace(delta, entries=entries, payload=payload, rule=rule)


def link_pack(
    new: Any,
    shadow: Any,
    rule: ClassRule,
    *,
    block_elements: int = BLOCK_ELEMENTS[0],
    threads: int = 1,
    base_digest: tuple[int, int] | None = None,
) -> tuple[Delta, Delta]:
    """Pack what `delta_pack` and then `strat_pack` would, and read the weights once only.

    Both in host memory, and the shadow a row: what is elsewhere, or a box, takes the two steps.

    Args:
        new: the fresh weights.
        shadow: what the receiver is known to hold; written in place. On an error it is unchanged.
        rule: as `class_rule` chose it.
        block_elements: as for `delta_pack`.
        threads: 1 to 64; any number makes the same.
        base_digest: of the shadow, as for `delta_pack`.

    Returns:
        The delta, which undoes what happened to the shadow, and its link.

    Raises:
        InvalidArgument: the tensors are not two of a kind, share elements in memory, or are no rows
            in host memory; or the rule cannot be.
        OutOfMemory: there is no room for both.
    """
    one, other = bits_of("new", new), bits_of("shadow", shadow, is_written=True)
    check_pair(one, other)
    if not 1 <= threads <= _THREADS_MAX:
        raise InvalidArgument(f"threads {threads}: choose 1 to {_THREADS_MAX}")
    if one.device != CPU:
        raise InvalidArgument(f"new is on {one.device}: use delta_pack and strat_pack there")
    if (fault := rule.fault(one.width)) is not None:
        raise InvalidArgument(f"the class rule cannot be: {fault}")
    check_base_digest(base_digest)
    entries, payload, digest_before, digest_after, link_entries, link_payload = _core.link_pack(
        one.bits,
        other.bits,
        _fields(rule),
        block_elements=block_elements,
        base_digest=base_digest,
        threads=threads,
        isa=_isa(),
    )
    count, width = other.bits.size, other.width
    delta = Delta(count, block_elements, width, entries, payload, digest_before, digest_after)
    if not has_strat(link_entries):
        return delta, delta
    return delta, replace(delta, entries=link_entries, payload=link_payload, rule=rule)


def strat_unpack(link: Delta, base: Any, *, threads: int = 1) -> Delta:
    """Make of a link the delta that `strat_pack` was given, bit for bit.

    Args:
        link: as it was received; one without STRAT blocks is returned as it is.
        base: the weights that the delta is for; read only.
        threads: 1 to 64.

    Raises:
        InvalidArgument: the base is of another size or width.
        CorruptData: the base is not what the delta was made from, or the link is not well formed;
            the sentence names its block.
        OutOfMemory: there is no room for the delta.
    """
    if link.rule is None:
        return link
    row = _row("base", base, link)
    if digest(row) != link.base_digest:
        raise CorruptData("the base is not the weights that the delta was made from")
    entries, payload = _core.strat_unpack(
        row,
        link,
        _fields(link.rule),
        threads=threads,
        isa=_isa(),
    )
    return replace(link, entries=entries, payload=payload, rule=None)


def has_strat(entries: npt.NDArray[np.uint64]) -> bool:
    """Whether a table has STRAT blocks, so that only `strat_unpack` can read the delta."""
    return bool(((entries & _KIND) == _STRAT).any())


def host_row(tensor: TensorBits) -> npt.NDArray[Any]:
    """Return a tensor as one row in host memory; what is there and contiguous is not copied."""
    bits = tensor.bits
    if tensor.device != CPU:
        bits = bits.cpu().numpy()
    row: npt.NDArray[Any] = np.ascontiguousarray(bits).reshape(-1)
    return row.view(np.dtype(f"u{row.itemsize}"))


def _row(name: str, tensor: Any, delta: Delta) -> npt.NDArray[Any]:
    row = host_row(bits_of(name, tensor))
    if (len(row), 8 * row.itemsize) != (delta.count, delta.width):
        raise InvalidArgument(
            f"{name} has {len(row)} elements of {8 * row.itemsize} bits, "
            f"the delta {delta.count} of {delta.width}"
        )
    return row


def _fields(rule: ClassRule) -> tuple[int, int, int, int, tuple[int, ...]]:
    return rule.shift, rule.exponent_bits, rule.origin, rule.all_mask, rule.magnitude_bits


def _isa() -> str | None:
    return lowered_isa(read_environment().isa)
