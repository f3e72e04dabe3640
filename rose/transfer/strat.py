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
from rose.transfer.backend import lowered_isa
from rose.transfer.codec import digest
from rose.transfer.delta import ClassRule, Delta
from rose.transfer.tensor import CPU, TensorBits, bits_of

_KIND: Final = np.uint64(15)
_STRAT: Final = np.uint64(4)


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
        count=delta.count,
        block_elements=delta.block_elements,
        entries=delta.entries,
        payload=delta.payload,
        rule=_fields(rule),
        is_after=is_after,
        threads=threads,
        isa=_isa(),
    )
    if not has_strat(entries):
        return delta
    return replace(delta, entries=entries, payload=payload, rule=rule)


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
        count=link.count,
        block_elements=link.block_elements,
        entries=link.entries,
        payload=link.payload,
        rule=_fields(link.rule),
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
    if 8 * row.itemsize != delta.width:
        raise InvalidArgument(
            f"{name} has elements of {8 * row.itemsize} bits, the delta of {delta.width}"
        )
    return row


def _fields(rule: ClassRule) -> tuple[int, int, int, int, tuple[int, ...]]:
    return rule.shift, rule.exponent_bits, rule.origin, rule.all_mask, rule.magnitude_bits


def _isa() -> str | None:
    return lowered_isa(read_environment().isa)
