"""What changed between two checkpoints, and what it would take to send it: one pass over both."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from rose.checkpoints.change_counts import ChangeCounts
from rose.checkpoints.checkpoint import THREADS, TILE_UNITS, Checkpoint, count_units
from rose.checkpoints.contents import Advance, Pair, Presence, pairs
from rose.checkpoints.other_codecs import coordinate_bytes, gap_xor_bytes, zstandard_compressor
from rose.checkpoints.safetensors_file import Units
from rose.checkpoints.tensor_kinds import kind_of, layer_of
from rose.errors import InvalidArgument
from rose.transfer.codec.class_rule import class_rule
from rose.transfer.codec.delta import Delta
from rose.transfer.codec.operations import delta_pack
from rose.transfer.codec.strat import strat_pack

DENSE: Final = "dense"
COORDINATES: Final = "coordinates"
GAP_XOR_ZSTD: Final = "gap_xor_zstd"
GAP: Final = "gap"
STRAT: Final = "strat"
CODECS: Final = (DENSE, COORDINATES, GAP_XOR_ZSTD, GAP, STRAT)
"""All that a tensor can be sent in; `GAP_XOR_ZSTD` only where zstandard is installed."""


@dataclass(frozen=True, slots=True)
class TensorChange:
    """A tensor that both checkpoints have.

    Args:
        name: of it.
        kind: what it is for, one of `KINDS`.
        layer: the number of its layer; None if it is in none.
        dtype: a key of `STORED_DTYPES`.
        shape: of its elements.
        elements: that were compared: halves of those of more than 32 bits, bytes of those of less
            than 8.
        changed: how many of them differ in a bit.
        nbytes: by codec, what sending the change would take.
    """

    name: str
    kind: str
    layer: int | None
    dtype: str
    shape: tuple[int, ...]
    elements: int
    changed: int
    nbytes: Mapping[str, int]

    @property
    def density(self) -> float:
        """Return the share of elements that change, 0 to 1."""
        return self.changed / self.elements if self.elements else 0.0


@dataclass(frozen=True, slots=True)
class Inspection:
    """What was found.

    Args:
        tensors: that both have.
        counts: of their elements, by dtype.
        only_old: names that only the old checkpoint has.
        only_new: names that only the new one has.
        unlike: name, and what it is in the old and in the new one, where dtype or shape differ.
    """

    tensors: tuple[TensorChange, ...]
    counts: Mapping[str, ChangeCounts]
    only_old: tuple[str, ...]
    only_new: tuple[str, ...]
    unlike: tuple[tuple[str, str, str], ...]

    @property
    def elements(self) -> int:
        """Return how many elements were compared."""
        return sum(tensor.elements for tensor in self.tensors)

    @property
    def changed(self) -> int:
        """Return how many of them differ."""
        return sum(tensor.changed for tensor in self.tensors)

    def nbytes(self) -> dict[str, int]:
        """Return what every codec takes, for all tensors."""
        found = [codec for codec in CODECS if all(codec in one.nbytes for one in self.tensors)]
        return {codec: sum(one.nbytes[codec] for one in self.tensors) for codec in found}

    def bounds(self) -> dict[str, float]:
        """Return the bytes that no codec can go below that knows this much and nothing else."""
        counts = self.counts.values()
        return {
            "iid": sum(one.iid_bits() for one in counts) / 8,
            "class": sum(one.class_bits() for one in counts) / 8,
        }


def inspect(
    old: Checkpoint, new: Checkpoint, *, advance: Advance, tile_units: int = TILE_UNITS
) -> Inspection:
    """Compare two checkpoints.

    Args:
        old: the version before.
        new: the version after.
        advance: is told of progress, in bytes of `old` and `new` together.
        tile_units: elements that are coded together.

    Raises:
        InvalidArgument: no tensor of one has the name, the dtype and the shape of one of the other.
    """
    found = pairs(old, new)
    inspector = _Inspector(tile_units, advance)
    tensors = tuple(inspector.inspect(one) for one in found if one.presence is Presence.BOTH)
    if not tensors:
        raise InvalidArgument(
            f"{old.path} and {new.path} have no tensor in common: none has the same name, dtype "
            f"and shape in both"
        )
    return Inspection(
        tensors,
        inspector.counts,
        tuple(name for name in old.tensors if name not in new.tensors),
        tuple(name for name in new.tensors if name not in old.tensors),
        tuple(_unlike(old, new)),
    )


def _unlike(old: Checkpoint, new: Checkpoint) -> Iterator[tuple[str, str, str]]:
    for name, tensor in old.tensors.items():
        if name not in new.tensors:
            continue
        one, other = tensor.stored, new.tensors[name].stored
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            before, after = (f"{it.dtype} {list(it.shape)}" for it in (one, other))
            yield name, before, after


@dataclass
class _Inspector:
    """Looks at tensor after tensor."""

    tile_units: int
    advance: Advance
    counts: dict[str, ChangeCounts] = field(default_factory=dict)
    compress: Callable[[bytes], bytes] | None = field(default_factory=zstandard_compressor)

    def inspect(self, pair: Pair) -> TensorChange:
        """Look at one tensor."""
        stored = pair.stored
        self.counts.setdefault(stored.dtype, ChangeCounts(stored.dtype))
        codecs = [one for one in CODECS if one != GAP_XOR_ZSTD or self.compress is not None]
        nbytes = dict.fromkeys(codecs, 0)
        nbytes[DENSE] = stored.nbytes
        changed = 0
        for old, new in pair.tiles(self.tile_units):
            changed += self._measure(old, new, stored.dtype, nbytes)
            self.advance(old.nbytes + new.nbytes)
        return TensorChange(
            stored.name,
            kind_of(stored.name),
            layer_of(stored.name),
            stored.dtype,
            stored.shape,
            count_units(stored),
            changed,
            nbytes,
        )

    def _measure(self, old: Units, new: Units, dtype: str, nbytes: dict[str, int]) -> int:
        """Add what one tile takes, and return how much of it changes."""
        positions = self.counts[dtype].add(old, new)
        if not len(positions):
            return 0
        nbytes[COORDINATES] += coordinate_bytes(old, len(positions))
        if self.compress is not None:
            nbytes[GAP_XOR_ZSTD] += gap_xor_bytes(old, new, positions, self.compress)
        delta = delta_pack(new, old.copy(), threads=THREADS)
        gap_bytes = len(delta.to_bytes())
        nbytes[GAP] += gap_bytes
        nbytes[STRAT] += self._link_bytes(delta, old, new, dtype) or gap_bytes
        return len(positions)

    def _link_bytes(self, delta: Delta, old: Units, new: Units, dtype: str) -> int | None:
        """Return the bytes of a tile on a link; None where STRAT gains nothing."""
        # Bits of 16 without a meaning would be taken for bf16.
        kind = np.float16 if dtype == "F16" else old.dtype
        rule = class_rule(new.view(kind), old.view(kind))
        return (
            None if rule is None else len(strat_pack(delta, old, rule, threads=THREADS).to_bytes())
        )
