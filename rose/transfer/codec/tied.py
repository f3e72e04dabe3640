"""Weights under several names: one storage is changed once, and never half by two deltas."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from rose.errors import InvalidArgument
from rose.transfer.codec.box import Box
from rose.transfer.codec.tensor import bits_of

_Place: TypeAlias = tuple[str, Box]  # a device, and where on it


@dataclass(frozen=True, slots=True)
class Distinct:
    """Tensors that share no byte, and the other names of some.

    Args:
        tensors: under their first names, in the order of the mapping.
        ties: each other name, and the first name of the same tensor.
    """

    tensors: dict[str, Any]
    ties: dict[str, str]


def distinct(tensors: Mapping[str, Any]) -> Distinct:
    """Collapse names of one storage, so that a delta is applied to it once.

    Two names are tied when they list the same bytes in the same order, whatever their shapes. A
    tensor without elements is tied to none. Nothing is read or copied.

    Raises:
        InvalidArgument: two tensors share memory and are not the same, such as a matrix and its
            transpose, or a part of another; or one is nothing that `bits_of` takes.
    """
    first_of: dict[_Place, str] = {}
    kept: dict[str, Any] = {}
    ties: dict[str, str] = {}
    for name, tensor in tensors.items():
        seen = bits_of(name, tensor)
        box = Box.of(seen.bits)
        first = name if box.is_empty else first_of.setdefault((seen.device, box), name)
        if first == name:
            kept[name] = tensor
        else:
            ties[name] = first
    for one, other in _meetings(first_of):
        raise InvalidArgument(
            f"{one} and {other} share memory and are not the same tensor: pass one, or a copy"
        )
    return Distinct(kept, ties)


def _meetings(first_of: Mapping[_Place, str]) -> Iterator[tuple[str, str]]:
    """Find pairs that share a byte: by address, among those whose spans are not over yet."""
    near: list[tuple[_Place, str]] = []
    for place, name in sorted(first_of.items(), key=lambda one: (one[0][0], one[0][1].address)):
        device, box = place
        near = [one for one in near if one[0][0] == device and one[0][1].last > box.address]
        yield from ((other, name) for (_, one), other in near if one.meets(box))
        near.append((place, name))
