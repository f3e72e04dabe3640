"""The page on deltas is enough to read them: a reader written from it agrees with the core.

Frames of all kinds are altered and sealed again. Both refuse the same, and read the same from what
they do not refuse; where they would differ, the page says too little.
"""

import random
import struct
import zlib
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest

from rose.errors import CorruptData, InvalidArgument
from rose.transfer import Delta, delta_pack
from rose.transfer.codec.delta import ClassRule
from rose.transfer.codec.operations import delta_check, topk_unpack
from rose.transfer.codec.strat import has_strat, strat_pack, strat_unpack
from tests.reference import delta as reference
from tests.reference import delta_reader
from tests.vectors.delta_v2 import changed

HEADER_BYTES = 96
BLOCK = 16_384
RULES = {
    8: ClassRule(3, 4, 5, 0b1, (3, 2, 2, 2, 1, 1, 0, 0)),
    16: ClassRule(7, 8, 112, 0b110, (6, 4, 2, 2, 2, 2, 1, 0)),
    32: ClassRule(23, 8, 112, 0b1000_0001, (20, 4, 2, 2, 2, 2, 1, 0)),
}


@dataclass(frozen=True)
class Case:
    """A frame, and the weights that it was packed from."""

    frame: bytes
    old: Any


def link_case(rng: np.random.Generator, width: int, density: float) -> Case:
    """Return a link: elements of one class change often, by anything, those of others seldom."""
    rule, count = RULES[width], 600
    of_class = rng.choice([0, 1, 7], count)
    low = rng.integers(0, 1 << rule.shift, count)
    old = ((rule.origin + of_class << rule.shift) + low).astype(f"<u{width // 8}")
    by = rng.choice([1, -1, 2, 3, 40], count, p=[0.48, 0.48, 0.02, 0.01, 0.01])
    by[rng.random(count) >= np.where(of_class == 1, density, 0.01)] = 0
    delta = delta_pack((old + by).astype(old.dtype), old.copy(), block_elements=BLOCK)
    return Case(strat_pack(delta, old, rule).to_bytes(), old)


@cache
def cases() -> list[Case]:
    """Return frames of every kind and width, some for the link."""
    made = []
    for width in (8, 16, 32):
        rng = np.random.default_rng(width)
        for count in (33, 300):
            # All sizes are listed where no change is a step of one.
            for density, steps in ((0.05, 0.9), (0.3, 0.0), (0.5, 0.5), (0.9, 1.0), (1.0, 0.1)):
                new, old = changed(rng, count, density=density, steps=steps, width=width)
                made.append(Case(delta_pack(new, old.copy(), block_elements=BLOCK).to_bytes(), old))
        made += [link_case(rng, width, density) for density in (0.2, 0.9)]
    return made


def sealed(frame: bytearray) -> bytes:
    frame[88:92] = struct.pack("<I", zlib.crc32(frame[HEADER_BYTES:]))
    frame[92:96] = struct.pack("<I", zlib.crc32(frame[:92]))
    return bytes(frame)


def altered(frame: bytes, draw: random.Random) -> bytes:
    """Alter the header's fields but digests, the table or the payload; seldom add or drop words."""
    content = bytearray(frame)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        at = draw.choice((draw.randrange(64, 88), HEADER_BYTES + draw.randrange(8)))
        if draw.random() < 0.7:
            at = draw.randrange(HEADER_BYTES + 8, len(content))
        content[at] = draw.choice((content[at] ^ 1 << draw.randrange(8), draw.randrange(256)))
    if draw.random() < 0.1:
        words = draw.choice((-1, 1))
        content = content + bytes(4) if words > 0 else content[:-4]
        content[24:32] = struct.pack("<Q", (len(content) - HEADER_BYTES - 8) // 4)
        if draw.random() < 0.5:  # the entry of the only block, too
            entry = struct.unpack_from("<Q", content, HEADER_BYTES)[0] + (words << 44)
            content[HEADER_BYTES : HEADER_BYTES + 8] = struct.pack("<Q", entry % (1 << 64))
    return sealed(content)


def read_by_page(case: Case, frame: bytes) -> delta_reader.Changes | None:
    """Return the changes as the page has them; None where it has the frame refused."""
    old = case.old.tolist()
    try:
        taken = delta_reader.read_frame(frame)
        if (taken.width, taken.count) != (8 * case.old.itemsize, len(old)):  # of other weights
            return delta_reader.changes_of(taken)
        found = delta_reader.changes_of(taken, old)
    except delta_reader.Refused:
        return None
    (entry,) = taken.entries
    if entry & 15 == delta_reader.STRAT:  # only where the block that it stands for takes more
        dense = [0] * len(old)
        for at, one in found:
            dense[at] = one
        if len(reference.pack_block(dense, taken.width)[1]) <= entry >> 44:
            return None
    return found


def read_by_core(case: Case, frame: bytes) -> delta_reader.Changes | None:
    try:
        delta = Delta.from_bytes(frame)
        is_mine = (delta.width, delta.count) == (8 * case.old.itemsize, len(case.old))
        if has_strat(delta.entries) and is_mine:
            delta = strat_unpack(delta, case.old)
        delta_check(delta)
    except (CorruptData, InvalidArgument):
        return None
    base = case.old if is_mine else np.zeros(delta.count, f"<u{delta.width // 8}")
    positions, values = topk_unpack(delta, base)
    differences = (np.asarray(values) - base[positions]).astype(base.dtype)
    return list(zip(np.asarray(positions).tolist(), differences.tolist(), strict=True))


def test_reader_and_core_agree_on_every_kind() -> None:
    kinds, widths = set(), set()
    for case in cases():
        kinds.add(kind := struct.unpack_from("<Q", case.frame, HEADER_BYTES)[0] & 15)
        widths |= {case.frame[64]} if kind == delta_reader.STRAT else set()
        found = read_by_page(case, case.frame)
        assert found
        assert found == read_by_core(case, case.frame)
    assert kinds == {delta_reader.GAP, delta_reader.RAW, delta_reader.BITMAP, delta_reader.STRAT}
    assert widths == {8, 16, 32}


def agree(seed: int, rounds: int) -> int:
    """Alter each frame so often; return how many altered ones were not refused."""
    draw = random.Random(seed)
    accepted = 0
    for case in cases():
        for _ in range(rounds):
            frame = altered(case.frame, draw)
            by_page, by_core = read_by_page(case, frame), read_by_core(case, frame)
            assert by_page == by_core, frame.hex()
            accepted += by_page is not None
    return accepted


@pytest.mark.parametrize("seed", range(3))
def test_page_and_core_refuse_the_same_frames(seed: int) -> None:
    assert agree(seed, 20) > 0


@pytest.mark.slow
def test_page_and_core_refuse_the_same_frames_in_many_rounds() -> None:
    assert agree(1_000, 1_000) > 0
