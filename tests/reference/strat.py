"""The slow truth of STRAT blocks: changes coded class by class of the old exponent.

`docs/protocol.md`, "STRAT", is the format. Every twin must give these bits.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.reference import delta as plain
from tests.reference.delta import STRAT, Bits, Delta, elias_fano_bits, fields, low_bits

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


class Stream:
    """Takes fields off a stream of bits."""

    def __init__(self, section: list[int]) -> None:
        self._bits = plain.from_words(section, 32 * len(section))
        self._at = 0

    def bits(self, count: int) -> list[int]:
        taken = self._bits[self._at : self._at + count]
        self._at += count
        return taken

    def gamma(self) -> int:
        low = 0
        while not self.bits(1)[0]:
            low += 1
        return 1 << low | plain.numbers(self.bits(low), low, 1)[0]

    def fields(self, count: int, width: int) -> list[int]:
        return plain.numbers(self.bits(count * width), width, count)

    def elias_fano(self, universe: int, count: int) -> list[int]:
        low = low_bits(universe, count)
        high = self.bits(count + ((universe - 1) >> low))
        return plain.join(high, self.fields(count, low), low)


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


def read_class(
    stream: Stream,
    universe: int,
    counts: tuple[int, int, int],
    *,
    c: int,
    rule: ClassRule,
    width: int,
) -> tuple[list[int], list[int]]:
    """Ranks within the class, and differences."""
    changed, listed, large = counts
    if not changed:
        return [], []
    is_all = bool(rule.all_mask >> c & 1)
    if universe >= 4 * changed:
        ranks = stream.elias_fano(universe, changed)
    else:
        ranks = [rank for rank, bit in enumerate(stream.bits(universe)) if bit]
    signs = stream.bits(changed)
    sizes = [1] * changed
    where = stream.elias_fano(changed, listed) if listed and not is_all else list(range(listed))
    magnitudes = stream.fields(listed, rule.magnitude_bits[c])
    if large:
        which = stream.elias_fano(listed, large)
        for i, one in zip(which, stream.fields(large, width), strict=True):
            magnitudes[i] = one
    for i, one in zip(where, magnitudes, strict=True):
        sizes[i] = one + (1 if is_all else 2)
    modulus = 1 << width
    return ranks, [(-s if sign else s) % modulus for sign, s in zip(signs, sizes, strict=True)]


def read_block(section: list[int], old: Bits, rule: ClassRule) -> Bits:
    """The differences of one block, dense."""
    stream = Stream(section)
    counts = []
    for c in range(CLASSES):
        changed = stream.gamma() - 1
        is_all = rule.all_mask >> c & 1
        listed = 0 if not changed else changed if is_all else stream.gamma() - 1
        counts.append((changed, listed, stream.gamma() - 1 if listed else 0))
    classes = classes_of(old, rule)
    dense = np.zeros_like(old)
    for c in range(CLASSES):
        members = np.flatnonzero(classes == c)
        width = plain.width_of(old)
        ranks, differences = read_class(
            stream, len(members), counts[c], c=c, rule=rule, width=width
        )
        for rank, difference in zip(ranks, differences, strict=True):
            dense[members[rank]] = difference
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
            dense = read_block(payload, base[where], rule)
            restored, payload = plain.pack_block(dense.tolist(), link.width)
            delta.entries.append(restored)
        else:
            delta.entries.append(entry)
        delta.payload += payload
    return delta
