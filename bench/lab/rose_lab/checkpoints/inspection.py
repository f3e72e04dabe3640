"""Changes between two checkpoints, and the bytes to send them, from one pass over both."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from rose.checkpoints.checkpoint import THREADS, Advance, Checkpoint, tiles_of
from rose.checkpoints.safetensors_file import Units
from rose.errors import InvalidArgument
from rose.transfer.codec.class_rule import class_rule
from rose.transfer.codec.delta import ClassRule
from rose.transfer.codec.operations import delta_pack
from rose.transfer.codec.strat import strat_pack
from rose.transfer.plan.tiling import plain_tiling
from rose.transfer.tensors import StoredTensor
from rose_lab.checkpoints.dtype_counts import Counts, DtypeCounts

DENSE: Final = "dense"
COORDINATES: Final = "coordinates"
GAP_XOR_ZSTD: Final = "gap_xor_zstd"
GAP: Final = "gap"
STRAT: Final = "strat"
CODECS: Final = (DENSE, COORDINATES, GAP_XOR_ZSTD, GAP, STRAT)
"""Codecs to compare; `GAP_XOR_ZSTD` only where zstandard is installed."""
_INDEX_BYTES: Final = 4
_GAP_MAX: Final = 65_535

# Patterns that tell the use of a tensor from its name, in today's model families. The first match
# counts, so a norm inside attention is a norm.
_KINDS: Final = {
    kind: re.compile(pattern, re.IGNORECASE)
    for kind, pattern in (
        ("norm", r"norm|\bln_|\bln\d|layer_?norm"),
        ("head", r"lm_head|embed_out|score\.|(?:^|\.)output\.weight|v_head|value_head"),
        ("embed", r"embed|\bwte\b|\bwpe\b|(?:^|\.)shared\.weight"),
        ("attn", r"attn|attention|[qkvo]_proj|qkv|\bwq\b|\bwk\b|\bwv\b|\bwo\b"),
        ("mlp", r"mlp|ffn|feed_forward|expert|gate|up_proj|down_proj|\bfc\d|\bw[123]\b"),
    )
}
KINDS: Final = ("embed", "attn", "mlp", "norm", "head", "other")


@dataclass(frozen=True, slots=True)
class TensorChange:
    """A tensor that both checkpoints have.

    Args:
        kind: use of the tensor, one of `KINDS`.
        dtype: a key of `STORED_DTYPES`.
        elements: number of units compared. A unit has 8, 16 or 32 bits: wider elements are several
            units, narrower elements share a unit.
        changed: number of units that differ.
        nbytes: bytes to send the change, by codec.
    """

    name: str
    kind: str
    dtype: str
    elements: int
    changed: int
    nbytes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Inspection:
    """Changes of all tensors.

    Args:
        tensors: tensors in both checkpoints.
        counts: changes of their elements, by dtype.
        only_old: names that only the old checkpoint has.
        only_new: names that only the new checkpoint has.
        unlike: (name, old dtype and shape, new dtype and shape) of each tensor that both
            checkpoints have with different dtypes or shapes.
    """

    tensors: tuple[TensorChange, ...]
    counts: Mapping[str, DtypeCounts]
    only_old: tuple[str, ...]
    only_new: tuple[str, ...]
    unlike: tuple[tuple[str, str, str], ...]

    @property
    def elements(self) -> int:
        """Return the number of units compared."""
        return sum(tensor.elements for tensor in self.tensors)

    @property
    def changed(self) -> int:
        """Return the number of units that differ."""
        return sum(tensor.changed for tensor in self.tensors)

    def nbytes(self) -> dict[str, int]:
        """Return the bytes of all changes, by codec."""
        found = [codec for codec in CODECS if all(codec in one.nbytes for one in self.tensors)]
        return {codec: sum(one.nbytes[codec] for one in self.tensors) for codec in found}

    def bounds(self) -> dict[str, float]:
        """Return a lower bound on the bytes of any codec, for each model of the changes.

        The model `iid` assumes one distribution of changes for each dtype. The model `class`
        assumes one for each dtype and old exponent.
        """
        counts = self.counts.values()
        return {
            "iid": sum(one.iid_bits() for one in counts) / 8,
            "class": sum(one.class_bits() for one in counts) / 8,
        }


def inspect(old: Checkpoint, new: Checkpoint, *, advance: Advance) -> Inspection:
    """Compare two checkpoints, tile by tile.

    Args:
        old: the version before.
        new: the version after.
        advance: callback that takes the number of bytes, of `old` and `new` together, read since
            its last call.

    Raises:
        InvalidArgument: no tensor has the same name, dtype and shape in both.
    """
    stored = [one.stored for one in new.tensors.values() if _is_in(old, one.stored)]
    if not stored:
        raise InvalidArgument(
            f"{old.path} and {new.path} have no tensor in common: none has the same name, dtype "
            f"and shape in both"
        )
    compress = _zstandard()
    codecs = [one for one in CODECS if one != GAP_XOR_ZSTD or compress is not None]
    counts = {one.dtype: DtypeCounts(one.dtype) for one in stored}
    rules: dict[str, ClassRule | None] = {}
    changed = dict.fromkeys((one.name for one in stored), 0)
    nbytes = {one.name: {**dict.fromkeys(codecs, 0), DENSE: one.nbytes} for one in stored}
    for place, (one, other) in tiles_of(plain_tiling(stored), old, new):
        name, dtype = place.tensor, new.tensors[place.tensor].stored.dtype
        positions = counts[dtype].add(one, other)
        if len(positions):
            changed[name] += len(positions)
            if name not in rules:  # A rule takes long to find, so one tile represents its tensor.
                # class_rule treats 16-bit integers as bf16.
                kind = np.float16 if dtype == "F16" else one.dtype
                rules[name] = class_rule(other.view(kind), one.view(kind))
            for codec, size in _sizes(one, other, positions, rules[name], compress).items():
                nbytes[name][codec] += size
        advance(one.nbytes + other.nbytes)
    return Inspection(
        tuple(_change(one, changed[one.name], nbytes[one.name]) for one in stored),
        counts,
        tuple(name for name in old.tensors if name not in new.tensors),
        tuple(name for name in new.tensors if name not in old.tensors),
        tuple(_unlike(old, new)),
    )


def kind_of(name: str) -> str:
    """Return the use of a tensor, one of `KINDS`."""
    return next((kind for kind, pattern in _KINDS.items() if pattern.search(name)), "other")


def _change(one: StoredTensor, changed: int, nbytes: Mapping[str, int]) -> TensorChange:
    return TensorChange(one.name, kind_of(one.name), one.dtype, one.count, changed, nbytes)


def _is_in(checkpoint: Checkpoint, one: StoredTensor) -> bool:
    found = checkpoint.tensors.get(one.name)
    return found is not None and (found.stored.dtype, found.stored.shape) == (one.dtype, one.shape)


def _unlike(old: Checkpoint, new: Checkpoint) -> Iterator[tuple[str, str, str]]:
    for name in old.tensors:
        if name in new.tensors and not _is_in(old, new.tensors[name].stored):
            stored = (side.tensors[name].stored for side in (old, new))
            before, after = (f"{one.dtype} {list(one.shape)}" for one in stored)
            yield name, before, after


def _sizes(
    old: Units,
    new: Units,
    positions: Counts,
    rule: ClassRule | None,
    compress: Callable[[bytes], bytes] | None,
) -> dict[str, int]:
    """Return the bytes that each codec takes for a tile."""
    sizes = {COORDINATES: len(positions) * (_INDEX_BYTES + old.itemsize)}
    if compress is not None:
        sizes[GAP_XOR_ZSTD] = gap_xor_bytes(old, new, positions, compress)
    delta = delta_pack(new, old.copy(), threads=THREADS)
    sizes[GAP] = sizes[STRAT] = len(delta.to_bytes())
    if rule is not None:
        strat = strat_pack(delta, old, rule, threads=THREADS).to_bytes()
        sizes[STRAT] = min(sizes[GAP], len(strat))
    return sizes


def _zstandard() -> Callable[[bytes], bytes] | None:
    """Return zstd compression at level 1; None where the package is not installed."""
    try:
        from zstandard import ZstdCompressor  # noqa: PLC0415
    except ImportError:
        return None
    return ZstdCompressor(level=1).compress


def gap_xor_bytes(
    old: Units, new: Units, positions: Counts, compress: Callable[[bytes], bytes]
) -> int:
    """Return the bytes of 16-bit gaps and XORed values, each stream compressed.

    A gap of 65,535 or more is split into gaps of 65,535, each with a value of 0, and the remainder.
    """
    distances = np.diff(positions, prepend=-1) - 1
    at = np.arange(len(positions)) + np.cumsum(distances // _GAP_MAX)
    gaps = np.full(at[-1] + 1, _GAP_MAX, np.uint16)
    values = np.zeros(at[-1] + 1, old.dtype)
    gaps[at] = distances % _GAP_MAX
    values[at] = old[positions] ^ new[positions]
    return len(compress(gaps.tobytes())) + len(compress(values.tobytes()))
