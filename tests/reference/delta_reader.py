"""A reader of deltas, written from `docs/protocol.md`, "Deltas", and from nothing else.

It shares no code with what packs, and refuses all that the page refuses: where it and the core
differ, the page is not clear enough. Weights are lists of numbers from 0 to 2^w - 1.
"""

import struct
import zlib
from dataclasses import dataclass
from itertools import pairwise

EMPTY, GAP, RAW, BITMAP, STRAT = range(5)
CLASSES = 8
HEADER = struct.Struct("<8sIIQQ4QBB4B8B10sII")
Changes = list[tuple[int, int]]  # an element, and its difference modulo 2^w


class Refused(Exception):
    """A receiver refuses this delta."""


def need(holds: bool, why: str) -> None:
    if not holds:
        raise Refused(why)


@dataclass(frozen=True)
class Rule:
    """The class rule of a header."""

    shift: int
    exponent_bits: int
    origin: int
    all_mask: int
    magnitude_bits: tuple[int, ...]

    def class_of(self, old: int) -> int:
        return min(max((old >> self.shift) % (1 << self.exponent_bits) - self.origin, 0), 7)


@dataclass(frozen=True)
class Frame:
    """A delta as bytes, taken apart."""

    width: int
    block_elements: int
    count: int
    entries: list[int]
    payload: list[int]
    rule: Rule | None


def words_of(bits: int) -> int:
    return -(-bits // 32)


class Bits:
    """Takes fields off a payload, the first bit lowest."""

    def __init__(self, payload: list[int], *, has_borders: bool) -> None:
        """Read from the first bit on; with borders, each section begins a word."""
        self._bits = "".join(f"{word:032b}"[::-1] for word in payload)
        self._end = 32 * len(payload)
        self._at = 0
        self._has_borders = has_borders

    def take(self, width: int) -> int:
        need(self._at + width <= self._end, "the payload ends too early")
        field = self._bits[self._at : self._at + width]
        self._at += width
        return int(field[::-1] or "0", 2)

    def border(self) -> None:
        if self._has_borders:
            need(self.take(-self._at % 32) == 0, "unused bits are not 0")

    def fields(self, count: int, width: int) -> list[int]:
        """One section of numbers of `width` bits."""
        found = [self.take(width) for _ in range(count)]
        self.border()
        return found

    def elias_fano(self, count: int, universe: int) -> list[int]:
        low = (universe // count).bit_length() - 1
        high = self.fields(count + ((universe - 1) >> low), 1)
        tops = [at for at, bit in enumerate(high) if bit]
        need(len(tops) == count, "not as many positions as were said")
        lows = self.fields(count, low)
        found = [(top - i) << low | lows[i] for i, top in enumerate(tops)]
        ascends = all(one < other for one, other in pairwise(found))
        need(ascends and found[-1] < universe, "positions do not ascend within their universe")
        return found

    def bitmap(self, count: int, universe: int) -> list[int]:
        found = [at for at, bit in enumerate(self.fields(universe, 1)) if bit]
        need(len(found) == count, "not as many positions as were said")
        return found

    def gamma(self) -> int:
        low = 0
        while self.take(1) == 0:
            low += 1
        return 1 << low | self.take(low)

    def end(self) -> None:
        need(words_of(self._at) == words_of(self._end), "words are left over")
        need("1" not in self._bits[self._at :], "unused bits are not 0")


@dataclass(frozen=True)
class Sizes:
    """How the sizes of `changed` elements are listed."""

    changed: int
    listed: int
    m: int
    large: int
    are_all: bool  # magnitudes are size - 1; else size - 2
    has_ranks: bool


def read_differences(bits: Bits, signs: list[int], how: Sizes, width: int) -> list[int]:
    """Ranks to large: the differences of a block or of a class, modulo 2^w."""
    sizes = [1] * how.changed
    ranks = list(range(how.listed))
    if how.has_ranks:
        ranks = bits.elias_fano(how.listed, how.changed)
    magnitudes = bits.fields(how.listed, how.m)
    if how.large:
        for rank in (large := bits.elias_fano(how.large, how.listed)):
            need(magnitudes[rank] == 0, "the field of a large magnitude is not 0")
        for rank, magnitude in zip(large, bits.fields(how.large, width), strict=True):
            need(magnitude >= 1 << how.m, "a large magnitude is not large")
            magnitudes[rank] = magnitude
    for rank, magnitude in zip(ranks, magnitudes, strict=True):
        sizes[rank] = magnitude + (1 if how.are_all else 2)
    most = 1 << (width - 1)
    for sign, size in zip(signs, sizes, strict=True):
        need(size < most or (size == most and sign == 1), "a size that no element has")
    return [
        (-size if sign else size) % (1 << width) for sign, size in zip(signs, sizes, strict=True)
    ]


def read_entry(entry: int, elements: int, width: int) -> tuple[int, int, int, int]:
    """Kind, changed, listed and words of an entry that can be."""
    kind, changed = entry & 15, entry >> 4 & 0xFFFFF
    listed, words = entry >> 24 & 0xFFFFF, entry >> 44
    raw = words_of(width * elements)
    need(kind <= STRAT, "a kind that is unknown")
    if kind == EMPTY:
        need(entry == 0, "an EMPTY entry is not 0")
        return kind, changed, listed, words
    need(1 <= changed <= elements, "changes that cannot be")
    if kind == RAW:
        need(listed == 0 and words == raw, "an entry that no RAW block has")
    else:
        need(listed <= changed and words < raw, "an entry that no such block has")
    return kind, changed, listed, words


def read_block(entry: int, payload: list[int], elements: int, width: int) -> Changes:
    """The changes of an EMPTY, RAW, GAP or BITMAP block."""
    kind, changed, listed, _ = read_entry(entry, elements, width)
    if kind == EMPTY:
        return []
    need(kind != STRAT, "a STRAT block is not applied as it is")
    bits = Bits(payload, has_borders=True)
    if kind == RAW:
        found = [(at, one) for at, one in enumerate(bits.fields(elements, width)) if one]
        need(len(found) == changed, "not as many changes as its entry says")
        bits.end()
        return found
    positions = (bits.elias_fano if kind == GAP else bits.bitmap)(changed, elements)
    signs = bits.fields(changed, 1)
    m = large = 0
    if listed:
        shape = bits.take(32)
        m, large = shape & 0xFF, shape >> 8
        need(m < width and large <= listed, "a shape that cannot be")
    are_all = listed == changed
    how = Sizes(changed, listed, m, large, are_all, has_ranks=0 < listed < changed)
    differences = read_differences(bits, signs, how, width)
    bits.end()
    return list(zip(positions, differences, strict=True))


def read_strat(entry: int, payload: list[int], old: list[int], rule: Rule, width: int) -> Changes:
    """The changes of a STRAT block, whose elements were `old`."""
    kind, changed, listed, _ = read_entry(entry, len(old), width)
    need(kind == STRAT and listed == 0, "no entry of a STRAT block")
    bits = Bits(payload, has_borders=False)
    members: list[list[int]] = [[] for _ in range(CLASSES)]
    for at, one in enumerate(old):
        members[rule.class_of(one)].append(at)
    counts = []
    for c in range(CLASSES):
        is_all = bool(rule.all_mask >> c & 1)
        k = bits.gamma() - 1
        e = k if is_all or k == 0 else bits.gamma() - 1
        f = bits.gamma() - 1 if e > 0 else 0
        need(k <= len(members[c]) and e <= k and f <= e, "counts that no class has")
        ranked = e > 0 and not is_all
        counts.append(Sizes(k, e, rule.magnitude_bits[c], f, is_all, has_ranks=ranked))
    need(sum(one.changed for one in counts) == changed, "not as many changes as its entry says")
    found = []
    for mine, how in zip(members, counts, strict=True):
        if how.changed == 0:
            continue
        has_bitmap = len(mine) < 4 * how.changed
        ranks = (bits.bitmap if has_bitmap else bits.elias_fano)(how.changed, len(mine))
        signs = bits.fields(how.changed, 1)
        differences = read_differences(bits, signs, how, width)
        found += [(mine[rank], one) for rank, one in zip(ranks, differences, strict=True)]
    bits.end()
    return sorted(found)


def read_frame(content: bytes) -> Frame:
    """A delta as bytes: its header, its table and its payload."""
    need(len(content) >= HEADER.size, "cut off inside its header")
    magic, version, block_elements, count, words, *fields = HEADER.unpack_from(content)
    *fields, zeros, crc_behind, crc = fields[4:]  # in front of them are the digests
    width, has_rule, shift, exponent_bits, origin, all_mask, *magnitude_bits = fields
    need((magic, version) == (b"ROSEDLT2", 2), "another magic or version")
    need(crc == zlib.crc32(content[:92]), "the checksum of the header differs")
    need(block_elements in (65_536, 16_384) and width in (8, 16, 32), "a size that is none")
    need(count < 1 << 63 and not any(zeros), "a field that no header has")
    rule = None
    if has_rule:
        need(has_rule == 1 and shift + exponent_bits <= width, "a rule that cannot be")
        need(all(one < width for one in magnitude_bits), "a rule that cannot be")
        rule = Rule(shift, exponent_bits, origin, all_mask, tuple(magnitude_bits))
    else:
        need(not any(fields[2:]), "a rule that is not there is not 0")
    blocks = -(-count // block_elements)
    need(len(content) == HEADER.size + 8 * blocks + 4 * words, "another length")
    need(crc_behind == zlib.crc32(content[HEADER.size :]), "the checksum behind the header differs")
    entries = list(struct.unpack_from(f"<{blocks}Q", content, HEADER.size))
    payload = list(struct.unpack_from(f"<{words}I", content, HEADER.size + 8 * blocks))
    need(rule is not None or all(one & 15 != STRAT for one in entries), "STRAT without a rule")
    return Frame(width, block_elements, count, entries, payload, rule)


def changes_of(frame: Frame, old: list[int] | None = None) -> Changes:
    """All changes of a frame; `old`, what it was made from, is needed for STRAT blocks only."""
    found: Changes = []
    offset = 0
    for block, entry in enumerate(frame.entries):
        first = block * frame.block_elements
        elements = min(frame.block_elements, frame.count - first)
        words = entry >> 44
        payload = frame.payload[offset : offset + words]
        need(len(payload) == words, "the payload ends inside a block")
        offset += words
        if entry & 15 == STRAT and old is not None:
            need(frame.rule is not None, "STRAT without a rule")
            assert frame.rule is not None
            mine = read_strat(
                entry, payload, old[first : first + elements], frame.rule, frame.width
            )
        else:
            mine = read_block(entry, payload, elements, frame.width)
        found += [(first + at, one) for at, one in mine]
    need(offset == len(frame.payload), "words behind the last block")
    return found
