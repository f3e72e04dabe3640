"""The slow truth of the delta codec: one element at a time where that is readable, NumPy elsewhere.

`docs/protocol.md`, "Deltas", is the format. Every twin (C++, CUDA, Triton) must give these bits.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Bits = npt.NDArray[np.uint16]
EMPTY, GAP, RAW = 0, 1, 2
NOTHING_SENT = 1 << 15  # a threshold that no key reaches
MASK64 = (1 << 64) - 1


def words(bits: int) -> int:
    return -(-bits // 32)


def low_bits(universe: int, count: int) -> int:
    """Elias-Fano's split: the low bits that are stored plainly."""
    return (universe // count).bit_length() - 1


def elias_fano_words(universe: int, count: int) -> int:
    low = low_bits(universe, count)
    return words(count + ((universe - 1) >> low)) + words(count * low)


def gap_words(elements: int, changed: int, exceptions: int) -> int:
    size = elias_fano_words(elements, changed) + words(changed)
    if exceptions:
        size += elias_fano_words(changed, exceptions) + words(16 * exceptions)
    return size


def to_words(bits: list[int]) -> list[int]:
    """Lay bits out, the first one lowest in the first word."""
    padded = bits + [0] * (-len(bits) % 32)
    return [
        sum(bit << i for i, bit in enumerate(padded[at : at + 32]))
        for at in range(0, len(padded), 32)
    ]


def from_words(section: list[int], count: int) -> list[int]:
    return [section[i // 32] >> (i % 32) & 1 for i in range(count)]


def fields_to_words(values: list[int], width: int) -> list[int]:
    return to_words([value >> i & 1 for value in values for i in range(width)])


def elias_fano(universe: int, positions: list[int]) -> list[int]:
    low = low_bits(universe, len(positions))
    high = [0] * (len(positions) + ((universe - 1) >> low))
    for i, position in enumerate(positions):
        high[(position >> low) + i] = 1
    return to_words(high) + fields_to_words([p & ((1 << low) - 1) for p in positions], low)


class Reader:
    """Takes sections off a payload, in their order."""

    def __init__(self, payload: list[int]) -> None:
        self._payload = payload
        self._at = 0

    def bits(self, count: int) -> list[int]:
        section = self._payload[self._at : self._at + words(count)]
        self._at += words(count)
        return from_words(section, count)

    def fields(self, count: int, width: int) -> list[int]:
        bits = self.bits(count * width)
        return [
            sum(bit << i for i, bit in enumerate(bits[at * width : (at + 1) * width]))
            for at in range(count)
        ]

    def elias_fano(self, universe: int, count: int) -> list[int]:
        low = low_bits(universe, count)
        high = self.bits(count + ((universe - 1) >> low))
        tops = [at for at, bit in enumerate(high) if bit]
        lows = self.fields(count, low)
        return [((top - i) << low) | lows[i] for i, top in enumerate(tops)]


def change_key(new: Bits, old: Bits) -> npt.NDArray[np.int64]:
    """How large a change of bf16 is: the top 15 bits of |new - old| as fp32, subnormals as zero."""

    def widened(bits: Bits) -> npt.NDArray[np.float32]:
        is_subnormal = (bits & 0x7F80) == 0
        wide = np.where(is_subnormal, bits & 0x8000, bits).astype(np.uint32) << 16
        return wide.view(np.float32)

    with np.errstate(all="ignore"):
        size = np.abs(widened(new) - widened(old))
    key = (size.view(np.uint32) >> 16).astype(np.int64) & 0x7FFF
    key[(key & 0x7F80) == 0] = 0
    key[np.isnan(size)] = 0x7FFF
    return key


def topk_threshold(new: Bits, shadow: Bits, budget: int) -> int:
    """The smallest threshold >= 1 that at most `budget` changed elements reach."""
    keys = change_key(new, shadow)[new != shadow]
    threshold = 1
    while threshold < NOTHING_SENT and np.count_nonzero(keys >= threshold) > budget:
        threshold += 1
    return threshold


@dataclass
class Delta:
    count: int
    block_elements: int
    entries: list[int]
    payload: list[int]


def pack_block(new: list[int], old: list[int], is_sent: list[bool]) -> tuple[int, list[int]]:
    """One block: its entry and its payload."""
    positions = [i for i in range(len(new)) if is_sent[i]]
    if not positions:
        return 0, []
    signs, ranks, xors = [], [], []
    for rank, i in enumerate(positions):
        step = (new[i] - old[i]) & 0xFFFF
        signs.append(int(step == 0xFFFF))
        if step not in (1, 0xFFFF):
            ranks.append(rank)
            xors.append(new[i] ^ old[i])
    raw_words = words(16 * len(new))
    size = gap_words(len(new), len(positions), len(ranks))
    if size >= raw_words:
        dense = [new[i] ^ old[i] if is_sent[i] else 0 for i in range(len(new))]
        return RAW | len(positions) << 4 | raw_words << 44, fields_to_words(dense, 16)
    payload = elias_fano(len(new), positions) + to_words(signs)
    if ranks:
        payload += elias_fano(len(positions), ranks) + fields_to_words(xors, 16)
    assert len(payload) == size
    return GAP | len(positions) << 4 | len(ranks) << 24 | size << 44, payload


def pack(new: Bits, shadow: Bits, *, block_elements: int, threshold: int = 0) -> Delta:
    """Pack what changed, or of that what reaches `threshold`; moves `shadow` to what was sent."""
    delta = Delta(len(new), block_elements, [], [])
    is_sent = new != shadow
    if threshold > 0:
        is_sent &= change_key(new, shadow) >= threshold
    for at in range(0, len(new), block_elements):
        part = slice(at, at + block_elements)
        entry, payload = pack_block(
            new[part].tolist(), shadow[part].tolist(), is_sent[part].tolist()
        )
        delta.entries.append(entry)
        delta.payload += payload
    shadow[is_sent] = new[is_sent]
    return delta


def changes(delta: Delta) -> list[tuple[int, str, int]]:
    """List what a delta says: position, "step" or "xor", and by how much."""
    found = []
    offset = 0
    for block, entry in enumerate(delta.entries):
        kind, changed, exceptions, size = (
            entry & 15,
            entry >> 4 & 0xFFFFF,
            entry >> 24 & 0xFFFFF,
            entry >> 44,
        )
        at = block * delta.block_elements
        elements = min(delta.block_elements, delta.count - at)
        reader = Reader(delta.payload[offset : offset + size])
        offset += size
        if kind == RAW:
            dense = enumerate(reader.fields(elements, 16))
            found += [(at + i, "xor", xor) for i, xor in dense if xor]
        elif kind == GAP:
            positions = reader.elias_fano(elements, changed)
            steps = [-1 if sign else 1 for sign in reader.bits(changed)]
            ranks = reader.elias_fano(changed, exceptions) if exceptions else []
            xors = dict(zip(ranks, reader.fields(exceptions, 16), strict=True))
            found += [
                (at + position, "xor", xors[rank])
                if rank in xors
                else (at + position, "step", steps[rank])
                for rank, position in enumerate(positions)
            ]
    return found


def apply(delta: Delta, weights: Bits, *, undo: bool = False) -> None:
    """Change `weights` in place, or change them back."""
    for position, how, amount in changes(delta):
        old = int(weights[position])
        step = -amount if undo else amount
        weights[position] = (old ^ amount) if how == "xor" else (old + step) & 0xFFFF


def topk_unpack(delta: Delta, base: Bits) -> tuple[list[int], list[int]]:
    """The positions that change and the values they get, in ascending order."""
    after = base.copy()
    apply(delta, after)
    positions = [position for position, _, _ in changes(delta)]
    return positions, [int(after[position]) for position in positions]


# ---- digest -------------------------------------------------------------------------------------

STRIDES = (0x9E3779B97F4A7C15, 0xD1B54A32D192ED03)


def mix(word: int, index: int, stride: int, seed: int) -> int:
    x = (word + (index + 1) * stride + seed) & MASK64
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & MASK64
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & MASK64
    return x ^ x >> 31


def digest(bits: Bits, *, first_index: int = 0, seed: int = 0) -> tuple[int, int]:
    """Digest elements that start at element `first_index` (a multiple of 4) of their tensor."""
    padded = np.concatenate([bits, np.zeros(-len(bits) % 4, np.uint16)])
    sums = [0, 0]
    for i, word in enumerate(padded.view(np.uint64).tolist()):
        for which, stride in enumerate(STRIDES):
            sums[which] = (sums[which] + mix(word, first_index // 4 + i, stride, seed)) & MASK64
    return sums[0], sums[1]
