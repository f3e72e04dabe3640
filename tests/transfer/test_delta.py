"""A delta as a value, as bytes, and as damaged bytes."""

import struct
import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.errors import CorruptData, InvalidArgument
from rose.transfer import Delta, delta_apply, delta_pack
from rose.transfer.codec.delta import ClassRule
from rose.transfer.codec.operations import delta_check, delta_merge, topk_unpack
from tests.transfer.twins import DENSE, WIDE, WIDTHS, Bits, same
from tests.vectors.delta_v2 import changed

HEADER_BYTES = 96


RULE = ClassRule(7, 8, 112, 0b11, (6, 4, 2, 2, 2, 2, 1, 0))


@pytest.fixture
def packed() -> tuple[Delta, Bits]:
    """Return a delta of four blocks, EMPTY, GAP, BITMAP and RAW, and the base it is for."""
    rng = np.random.default_rng(1)
    new, old = changed(rng, 3 * DENSE + 100, density=0.02, steps=0.8)
    new[:DENSE] = old[:DENSE]
    new[2 * DENSE : 3 * DENSE : 2] = old[2 * DENSE : 3 * DENSE : 2] + np.uint16(1)
    new[3 * DENSE :] = ~old[3 * DENSE :]
    delta = delta_pack(new, old.copy(), block_elements=DENSE)
    assert [int(entry) & 15 for entry in delta.entries] == [0, 1, 3, 2]
    return delta, old


def with_words(delta: Delta, entries: Any = None, payload: Any = None) -> Delta:
    return replace(
        delta,
        entries=delta.entries if entries is None else np.array(entries, np.uint64),
        payload=delta.payload if payload is None else np.array(payload, np.uint32),
    )


# ---- bytes


def test_delta_survives_a_round_trip_through_bytes(packed: tuple[Delta, Bits]) -> None:
    delta, _ = packed
    frame = delta.to_bytes()
    assert len(frame) == HEADER_BYTES + delta.nbytes
    for kind in (bytes, bytearray, memoryview):
        again = Delta.from_bytes(kind(frame))
        assert same(again, delta)
        assert (again.count, again.digest) == (delta.count, delta.digest)


def test_header_has_the_layout_of_the_protocol(packed: tuple[Delta, Bits]) -> None:
    delta = replace(packed[0], rule=RULE)
    frame = delta.to_bytes()
    assert frame[:8] == b"ROSEDLT2"
    assert struct.unpack_from("<IIQQ4Q", frame, 8) == (
        2,
        DENSE,
        delta.count,
        len(delta.payload),
        *delta.base_digest,
        *delta.digest,
    )
    assert frame[64:78] == bytes([16, 1, 7, 8, 112, 0b11, 6, 4, 2, 2, 2, 2, 1, 0])
    assert frame[78:88] == bytes(10)
    assert struct.unpack_from("<II", frame, 88) == (
        zlib.crc32(frame[HEADER_BYTES:]),
        zlib.crc32(frame[:92]),
    )
    assert frame[96:] == delta.entries.tobytes() + delta.payload.tobytes()
    assert Delta.from_bytes(frame).rule == RULE
    assert packed[0].to_bytes()[65:78] == bytes(13)


def test_empty_delta_survives_a_round_trip() -> None:
    empty = np.empty(0, np.uint16)
    delta = delta_pack(empty, empty.copy())
    assert (delta.count, delta.nbytes, delta.changed, delta.digest) == (0, 0, 0, (0, 0))
    again = Delta.from_bytes(delta.to_bytes())
    assert same(again, delta)
    delta_apply(empty.copy(), again)


def test_delta_does_not_share_memory_with_its_frame(packed: tuple[Delta, Bits]) -> None:
    frame = bytearray(packed[0].to_bytes())
    delta = Delta.from_bytes(frame)
    frame[HEADER_BYTES:] = bytes(len(frame) - HEADER_BYTES)
    assert same(delta, packed[0])


SMALL = delta_pack(
    np.array([0x3F81, 2, 3, 4, 5, 6, 7, 8], np.uint16), np.arange(1, 9, dtype=np.uint16)
).to_bytes()


def test_every_truncation_and_every_flipped_bit_is_found() -> None:
    for size in range(len(SMALL)):
        with pytest.raises(CorruptData):
            Delta.from_bytes(SMALL[:size])
    for bit in range(8 * len(SMALL)):
        frame = bytearray(SMALL)
        frame[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptData):
            Delta.from_bytes(frame)


@pytest.mark.parametrize("frame", [b"", b"ROSELOG1" + bytes(200), SMALL + b"\0", SMALL * 2])
def test_foreign_bytes_are_refused(frame: bytes) -> None:
    with pytest.raises(CorruptData):
        Delta.from_bytes(frame)


def resealed(at: int, layout: str, value: int) -> bytes:
    """Return the frame with another field, under a checksum that is right."""
    frame = bytearray(SMALL)
    struct.pack_into(layout, frame, at, value)
    struct.pack_into("<I", frame, 92, zlib.crc32(frame[:92]))
    return bytes(frame)


@pytest.mark.parametrize(
    ("at", "layout", "value"),
    [
        (12, "<I", 4096),
        (16, "<Q", (1 << 64) - 1),
        (16, "<Q", 1 << 62),
        (24, "<Q", 1),  # one word less than there are
        (24, "<Q", 1 << 60),
        (64, "<B", 64),
        (65, "<B", 2),
        (66, "<B", 1),  # of a rule that is not there
        (77, "<B", 1),
        (78, "<B", 1),
        (87, "<B", 1),
    ],
)
def test_invalid_header_fields_are_refused(at: int, layout: str, value: int) -> None:
    with pytest.raises(CorruptData):
        Delta.from_bytes(resealed(at, layout, value))


def test_other_format_version_is_named() -> None:
    with pytest.raises(InvalidArgument, match=r"version 3; this rose reads version 2"):
        Delta.from_bytes(resealed(8, "<I", 3))


def test_invalid_rule_is_refused() -> None:
    sound = replace(Delta.from_bytes(SMALL), rule=RULE).to_bytes()
    for at, value, says in (
        (66, 9, r"exponent_bits 8 must be at most 16"),
        (70, 16, "must be below 16"),
    ):
        frame = bytearray(sound)
        frame[at] = value
        struct.pack_into("<I", frame, 92, zlib.crc32(frame[:92]))
        with pytest.raises(CorruptData, match=says):
            Delta.from_bytes(frame)


def test_strat_blocks_need_a_rule_and_are_never_applied() -> None:
    entries = np.array([entry_of(4, 1, 0, 1)], np.uint64)
    link = Delta(5, WIDE, 16, entries, np.array([1], np.uint32), (0, 0), (0, 0), RULE)
    assert same(Delta.from_bytes(link.to_bytes()), link)
    with pytest.raises(CorruptData, match="no class rule"):
        Delta.from_bytes(replace(link, rule=None).to_bytes())
    refused(link, np.zeros(5, np.uint16), "block 0 of the delta: it is STRAT, a wire encoding")


# ---- a value


def test_arrays_of_a_delta_are_read_only(packed: tuple[Delta, Bits]) -> None:
    delta, _ = packed
    for array in (delta.entries, delta.payload):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"block_elements": 4096}, "block_elements 4096: choose 65536 or 16384"),
        ({"count": -1}, "count -1 must be from 0"),
        ({"count": 1 << 63}, "must be from 0"),
        ({"count": WIDE + 1}, "2 blocks need 2 entries, got 1"),
        ({"digest": (0, 1 << 64)}, "two numbers of 64 bits"),
        ({"digest": (-1, 0)}, "two numbers of 64 bits"),
        ({"base_digest": (-1, 0)}, "base_digest .* two numbers of 64 bits"),
        ({"width": 12}, "width 12: elements have 8, 16 or 32 bits"),
        ({"rule": replace(RULE, magnitude_bits=(1,))}, "for each of 8 classes"),
        ({"rule": replace(RULE, origin=256)}, "its numbers must be from 0 to 255"),
        ({"entries": np.zeros(1, np.int64)}, "got 1 dimensions of int64"),
        ({"entries": np.zeros((1, 1), np.uint64)}, "got 2 dimensions"),
        ({"payload": np.zeros(4, np.uint32)[::2]}, "payload must be one contiguous row"),
        ({"payload": np.zeros(4, ">u4")}, "got 1 dimensions of >u4"),
    ],
)
def test_invalid_fields_are_named(fields: dict[str, Any], says: str) -> None:
    sound: dict[str, Any] = {
        "count": 5,
        "block_elements": WIDE,
        "width": 16,
        "entries": np.zeros(1, np.uint64),
        "payload": np.zeros(0, np.uint32),
        "base_digest": (0, 0),
        "digest": (0, 0),
    }
    Delta(**sound)
    with pytest.raises(InvalidArgument, match=says):
        Delta(**sound | fields)


# ---- what came over a wire


def refused(delta: Delta, base: Bits, says: str) -> None:
    """Check that nothing takes the delta, and that the weights stay."""
    held = base.copy()
    for undo in (False, True):
        for verify in (False, True):
            with pytest.raises(CorruptData, match=says):
                delta_apply(held, delta, undo=undo, verify=verify)
    with pytest.raises(CorruptData, match=says):
        topk_unpack(delta, base)
    with pytest.raises(CorruptData, match=says):
        delta_merge(delta, replace(delta, base_digest=delta.digest))
    with pytest.raises(CorruptData, match=says):
        delta_check(delta)
    assert held.tolist() == base.tolist()


def entry_of(kind: int, changed_count: int, listed: int, words: int) -> int:
    return kind | changed_count << 4 | listed << 24 | words << 44


def one_block(width: int, count: int, entry: int, words: Any) -> Delta:
    entries, payload = np.array([entry], np.uint64), np.array(words, np.uint32)
    return Delta(count, WIDE, width, entries, payload, (0, 0), (0, 0))


BASE = np.zeros(500, np.uint16)
# Positions 3, 40 and 400 of 500: 7 low bits, 3 + 3 high bits. A step down, and two that are listed:
# +9, whose magnitude is 7, and -5002, whose magnitude is large.
HIGH, LOW, SIGNS = 0b100011, 3 | 40 << 7 | 16 << 14, 0b101
SHAPE = 3 | 1 << 8
FIELDS = 7
# Ranks 1 and 2 of 3: no low bits, 2 + 2 high bits. The second of two is large: 1 low bit.
GAP = [HIGH, LOW, SIGNS, SHAPE, 0b1010, FIELDS, 0b1, 0b1, 5000]
ENTRY = entry_of(1, 3, 2, len(GAP))


def gap_of(*words: int, entry: int = ENTRY) -> Delta:
    return one_block(16, 500, entry, words)


def gap_with(at: int, word: int) -> list[int]:
    return [*GAP[:at], word, *GAP[at + 1 :]]


def test_unaltered_delta_is_sound() -> None:
    held = BASE.copy()
    delta_apply(held, gap_of(*GAP))
    found = {i: int(held[i].astype(np.int16)) for i in np.flatnonzero(held)}
    assert found == {3: -1, 40: 9, 400: -5002}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (gap_with(0, 0b000011), "number of its positions differs"),
        (gap_with(0, 0b110011), "number of its positions differs"),
        (gap_with(0, 0b1000011), "unused bits of its positions"),
        (gap_with(1, LOW | 1 << 21), "unused bits of its positions"),
        (gap_with(1, 3 | 3 << 7 | 16 << 14), "positions do not ascend"),
        (gap_with(1, 4 | 3 << 7 | 16 << 14), "positions do not ascend"),
        (gap_with(1, 3 | 40 << 7 | 127 << 14), "positions do not ascend"),
        (gap_with(2, 0b1101), "unused bits of its signs"),
        (gap_with(3, 16 | 1 << 8), "magnitudes must be narrower than its elements"),
        (gap_with(3, 3 | 3 << 8), "more large magnitudes than listed changes"),
        (gap_with(3, 3), "number of words does not match its changes"),
        (gap_with(4, 0b0010), "number of its ranks differs"),
        (gap_with(4, 0b11010), "number of its ranks differs"),
        (gap_with(4, 0b10010), "unused bits of its ranks"),
        (gap_with(5, FIELDS | 1 << 6), "unused bits of its magnitudes"),
        (gap_with(5, FIELDS | 1 << 3), "the field of a large magnitude is not 0"),
        (gap_with(6, 0b11), "number of its large ranks differs"),
        (gap_with(6, 0b10), "unused bits of its large ranks"),
        (gap_with(7, 0b11), "unused bits of its large ranks"),
        (gap_with(8, 5000 | 1 << 16), "unused bits of its large magnitudes"),
        (gap_with(8, 7), "a large magnitude is small enough for its field"),
        (gap_with(8, 0x7FFF), "a size exceeds the range of an element"),
        (GAP[:-1], "the payload ends inside it"),
        ([*GAP, 0], "1 words behind its last block"),
    ],
)
def test_every_fault_of_a_gap_block_is_named(words: list[int], says: str) -> None:
    refused(gap_of(*words), BASE, says)


def test_largest_size_is_only_allowed_downwards() -> None:
    delta_apply(BASE.copy(), gap_of(*gap_with(8, 0x7FFE)))
    words = gap_with(8, 0x7FFE)
    words[2] = 0b001  # -2^15 is a difference, 2^15 is none
    refused(gap_of(*words), BASE, "a size exceeds the range of an element")


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        (entry_of(5, 3, 2, 9), "its kind is unknown"),
        (entry_of(15, 0, 0, 0), "its kind is unknown"),
        (entry_of(4, 3, 0, 9), "it is STRAT"),
        (entry_of(0, 0, 0, 9), "EMPTY but has other bits set"),
        (entry_of(0, 1, 0, 0), "EMPTY but has other bits set"),
        (entry_of(1, 0, 0, 9), "number of changes is out of range"),
        (entry_of(1, 501, 0, 9), "number of changes is out of range"),
        (entry_of(1, 3, 4, 9), "more listed changes than changes"),
        (entry_of(1, 3, 2, 8), "number of words does not match its changes"),
        (entry_of(1, 3, 0, 9), "number of words does not match its changes"),
        (entry_of(1, 60, 2, 9), "number of words does not match its changes"),
        (entry_of(1, 3, 2, 250), "not RAW, so it must take fewer words than RAW"),
        (entry_of(3, 3, 2, 250), "not RAW, so it must take fewer words than RAW"),
        (entry_of(2, 0, 0, 250), "number of changes is out of range"),
        (entry_of(2, 501, 0, 250), "number of changes is out of range"),
        (entry_of(2, 3, 2, 250), "it is RAW and lists changes"),
        (entry_of(2, 3, 0, 9), "number of words does not match its elements"),
    ],
)
def test_every_fault_of_an_entry_is_named(entry: int, says: str) -> None:
    refused(gap_of(*GAP, entry=entry), BASE, f"block 0 of the delta: .*{says}")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([0b1000, 1, 0], "number of its positions differs"),
        ([0b1000, 0b1 << 31, 0], "unused bits of its positions"),
        ([0b1000, 1, 0b1000], "unused bits of its signs"),
    ],
)
def test_every_fault_of_a_bitmap_block_is_named(words: list[int], says: str) -> None:
    delta = one_block(16, 40, entry_of(3, 2 + ("positions differs" in says), 0, 3), words)
    refused(delta, np.zeros(40, np.uint16), says)


@pytest.mark.parametrize("width", WIDTHS)
def test_every_fault_of_a_raw_block_is_named(width: int) -> None:
    count = 128 // width - (width < 32)
    base = np.zeros(count, f"u{width // 8}")
    sound = one_block(width, count, entry_of(2, 1, 0, 4), [1, 0, 0, 0])
    delta_check(sound)
    two = np.array([entry_of(2, 2, 0, 4)], np.uint64)
    refused(replace(sound, entries=two), base, "the number of its changes differs from its entry")
    if width < 32:
        words = np.array([1, 0, 0, 1 << 31], np.uint32)
        refused(replace(sound, payload=words), base, "bits behind its elements")


def test_damaged_later_block_keeps_the_first_from_being_applied(
    packed: tuple[Delta, Bits],
) -> None:
    delta, base = packed
    payload = delta.payload.copy()
    payload[-1] ^= 0xFFFF0000  # the last element of the RAW block no longer changes
    payload[-1] &= 0x0000FFFF
    refused(with_words(delta, payload=payload), base, "block 3 of the delta")
    refused(with_words(delta, payload=delta.payload[:-1]), base, "block 3 .* payload ends inside")
    refused(with_words(delta, payload=[*delta.payload, 0]), base, "1 words behind its last block")
    refused(with_words(delta, entries=delta.entries[::-1].copy()), base, "block 0 of the delta")


@given(data=st.data())
def test_damage_is_refused_or_can_be_undone(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    width = data.draw(st.sampled_from(WIDTHS))
    density = data.draw(st.sampled_from([0.01, 0.1, 0.6]))
    new, base = changed(rng, 300, density=density, steps=0.7, width=width)
    delta = delta_pack(new, base.copy())
    words = [*delta.entries.view(np.uint32).tolist(), *delta.payload.tolist()]
    places = st.tuples(st.integers(0, len(words) - 1), st.integers(0, 31))
    for word, bit in data.draw(st.sets(places, min_size=1, max_size=3)):
        words[word] ^= 1 << bit
    entries = np.array(words[:2], np.uint32).view(np.uint64)
    damaged = with_words(delta, entries=entries, payload=words[2:])
    held = base.copy()
    with pytest.raises(CorruptData):
        delta_apply(held, damaged, verify=True)
    assert held.tolist() == base.tolist()
    try:
        delta_apply(held, damaged)
    except CorruptData:
        assert held.tolist() == base.tolist()
    else:
        delta_apply(held, damaged, undo=True)
        assert held.tolist() == base.tolist()


def test_weights_of_another_size_are_refused(packed: tuple[Delta, Bits]) -> None:
    delta, base = packed
    with pytest.raises(InvalidArgument, match="weights has 5 elements, the delta 49252"):
        delta_apply(base[:5].copy(), delta)
    with pytest.raises(InvalidArgument, match="base has 5 elements, the delta 49252"):
        topk_unpack(delta, base[:5])


def test_weights_of_another_width_are_refused(packed: tuple[Delta, Bits]) -> None:
    delta, base = packed
    with pytest.raises(InvalidArgument, match="weights has elements of 32 bits, the delta of 16"):
        delta_apply(base.astype(np.uint32), delta)
