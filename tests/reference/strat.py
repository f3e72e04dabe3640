"""The slow truth of STRAT blocks: changes coded class by class of the old exponent.

`docs/protocol.md`, "STRAT", is the format. Every twin must give these bits.
"""

from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

from tests.reference import delta as plain
from tests.reference import delta_reader
from tests.reference.delta import STRAT, Bits, Delta, elias_fano_bits, fields

CLASSES = 8


@dataclass(frozen=True)
class ClassRule:
    """How an element's old bits give its class, and what is the same for all blocks of a class."""

    shift: int
    exponent_bits: int
    origin: int
    all_mask: int  # bit c: in class c every change has its size listed
    magnitude_bits: tuple[int, ...]  # of each class


def classes_of(old: Bits, rule: ClassRule) -> Any:
    exponent = (old.astype(np.int64) >> rule.shift) & ((1 << rule.exponent_bits) - 1)
    return np.clip(exponent - rule.origin, 0, CLASSES - 1)


def gamma(number: int) -> list[int]:
    """Elias gamma of a number >= 1: a zero for each bit behind its leading one, that one, them."""
    low = number.bit_length() - 1
    return [0] * low + [1] + [number >> i & 1 for i in range(low)]


def elias_fano_stream(universe: int, positions: list[int]) -> list[int]:
    high, low = elias_fano_bits(universe, positions)
    return high + low


def positions_stream(universe: int, ranks: list[int]) -> list[int]:
    """The changed ones of a class: Elias-Fano, or a bitmap where that never takes more."""
    if universe >= 4 * len(ranks):
        return elias_fano_stream(universe, ranks)
    bitmap = [0] * universe
    for rank in ranks:
        bitmap[rank] = 1
    return bitmap


def class_bits(
    universe: int, ranks: list[int], differences: list[int], *, c: int, rule: ClassRule, width: int
) -> tuple[list[int], list[int]]:
    """Counts and body of one class: which of its `universe` elements change, and by how much."""
    counts = gamma(len(ranks) + 1)
    if not ranks:
        return counts, []
    m, is_all = rule.magnitude_bits[c], bool(rule.all_mask >> c & 1)
    moves = [plain.signed(one, width) for one in differences]
    listed = [i for i, (_, size) in enumerate(moves) if is_all or size > 1]
    magnitudes = [moves[i][1] - (1 if is_all else 2) for i in listed]
    large = [i for i, one in enumerate(magnitudes) if one >> m]
    if not is_all:
        counts += gamma(len(listed) + 1)
    if listed:
        counts += gamma(len(large) + 1)
    body = positions_stream(universe, ranks) + [sign for sign, _ in moves]
    if listed and not is_all:
        body += elias_fano_stream(len(ranks), listed)
    body += fields([0 if one >> m else one for one in magnitudes], m)
    if large:
        body += elias_fano_stream(len(listed), large)
        body += fields([magnitudes[i] for i in large], width)
    return counts, body


def strat_block(old: Bits, differences: Bits, rule: ClassRule) -> list[int]:
    """The words of one block that changes something."""
    classes = classes_of(old, rule)
    counts: list[int] = []
    bodies: list[int] = []
    for c in range(CLASSES):
        members = differences[classes == c]
        ranks = np.flatnonzero(members).tolist()
        count, body = class_bits(
            len(members), ranks, members[ranks].tolist(), c=c, rule=rule, width=plain.width_of(old)
        )
        counts += count
        bodies += body
    return plain.to_words(counts + bodies)


def strat_pack(delta: Delta, old: Bits, rule: ClassRule) -> Delta:
    """Recode a delta for the link; `old` is what it was made from. A block that grows stays."""
    dense = np.zeros_like(old)
    plain.apply(delta, dense)
    link = Delta(delta.count, delta.block_elements, [], [], delta.width)
    offset = 0
    for block, entry in enumerate(delta.entries):
        _, changed, _, size = plain.split_entry(entry)
        payload = delta.payload[offset : offset + size]
        offset += size
        where = slice(block * delta.block_elements, (block + 1) * delta.block_elements)
        strat = strat_block(old[where], dense[where], rule) if changed else []
        if len(strat) < size:
            link.entries.append(plain.entry_of(STRAT, changed, 0, len(strat)))
            payload = strat
        else:
            link.entries.append(entry)
        link.payload += payload
    return link


def read_block(entry: int, section: list[int], old: Bits, rule: ClassRule) -> Bits:
    """The differences of one block, dense."""
    dense = np.zeros_like(old)
    said = delta_reader.Rule(*astuple(rule))
    for at, one in delta_reader.read_strat(entry, section, old.tolist(), said, plain.width_of(old)):
        dense[at] = one
    return dense


def strat_unpack(link: Delta, base: Bits, rule: ClassRule) -> Delta:
    """Turn what crossed a link back into what `strat_pack` was given."""
    delta = Delta(link.count, link.block_elements, [], [], link.width)
    offset = 0
    for block, entry in enumerate(link.entries):
        kind, _, _, size = plain.split_entry(entry)
        payload = link.payload[offset : offset + size]
        offset += size
        if kind == STRAT:
            where = slice(block * link.block_elements, (block + 1) * link.block_elements)
            dense = read_block(entry, payload, base[where], rule)
            restored, payload = plain.pack_block(dense.tolist(), link.width)
            delta.entries.append(restored)
        else:
            delta.entries.append(entry)
        delta.payload += payload
    return delta
