"""A delta as a value, as bytes, and as something that came over a wire."""

import struct
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.errors import CorruptData, InvalidArgument
from rose.transfer import Delta, delta_apply, delta_pack, topk_unpack
from tests.transfer.twins import DENSE, WIDE, Bits, same
from tests.vectors.delta_v2 import changed

HEADER_BYTES = 64


@pytest.fixture
def packed() -> tuple[Delta, Bits]:
    """Return a delta of three blocks, EMPTY, GAP and RAW, and the base it is for."""
    rng = np.random.default_rng(1)
    new, old = changed(rng, 2 * DENSE + 100, density=0.02, steps=0.8)
    new[:DENSE] = old[:DENSE]
    new[2 * DENSE :] = ~old[2 * DENSE :]
    delta = delta_pack(new, old.copy(), block_elements=DENSE)
    assert [int(entry) & 15 for entry in delta.entries] == [0, 1, 2]
    return delta, old


def with_words(delta: Delta, entries: Any = None, payload: Any = None) -> Delta:
    return Delta(
        delta.count,
        delta.block_elements,
        delta.entries if entries is None else np.array(entries, np.uint64),
        delta.payload if payload is None else np.array(payload, np.uint32),
        delta.digest,
    )


# ---- bytes


def test_bytes_go_there_and_back(packed: tuple[Delta, Bits]) -> None:
    delta, _ = packed
    frame = delta.to_bytes()
    assert len(frame) == HEADER_BYTES + delta.nbytes
    for kind in (bytes, bytearray, memoryview):
        again = Delta.from_bytes(kind(frame))
        assert same(again, delta)
        assert (again.count, again.digest) == (delta.count, delta.digest)


def test_header_has_the_layout_of_the_protocol(packed: tuple[Delta, Bits]) -> None:
    delta, _ = packed
    frame = delta.to_bytes()
    assert frame[:8] == b"ROSEDLT1"
    assert struct.unpack_from("<IIQQQQQ", frame, 8) == (
        1,
        DENSE,
        delta.count,
        len(delta.payload),
        *delta.digest,
        0,
    )
    assert struct.unpack_from("<II", frame, 56) == (
        zlib.crc32(frame[HEADER_BYTES:]),
        zlib.crc32(frame[:60]),
    )
    assert frame[64:] == delta.entries.tobytes() + delta.payload.tobytes()


def test_an_empty_delta_has_bytes_too() -> None:
    empty = np.empty(0, np.uint16)
    delta = delta_pack(empty, empty.copy())
    assert (delta.count, delta.nbytes, delta.changed, delta.digest) == (0, 0, 0, (0, 0))
    again = Delta.from_bytes(delta.to_bytes())
    assert same(again, delta)
    delta_apply(empty.copy(), again)


def test_frame_does_not_follow_its_source(packed: tuple[Delta, Bits]) -> None:
    frame = bytearray(packed[0].to_bytes())
    delta = Delta.from_bytes(frame)
    frame[HEADER_BYTES:] = bytes(len(frame) - HEADER_BYTES)
    assert same(delta, packed[0])


SMALL = delta_pack(
    np.array([0x3F81, 2, 3, 4, 5, 6, 7, 8], np.uint16), np.arange(1, 9, dtype=np.uint16)
).to_bytes()


@pytest.mark.parametrize("size", range(len(SMALL)))
def test_every_truncation_is_found(size: int) -> None:
    with pytest.raises(CorruptData):
        Delta.from_bytes(SMALL[:size])


def test_every_flipped_bit_is_found() -> None:
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
    struct.pack_into("<I", frame, 60, zlib.crc32(frame[:60]))
    return bytes(frame)


@pytest.mark.parametrize(
    ("at", "layout", "value"),
    [
        (12, "<I", 4096),
        (16, "<Q", (1 << 64) - 1),
        (16, "<Q", 1 << 62),
        (24, "<Q", 2),  # one word less than there are
        (24, "<Q", 1 << 60),
        (48, "<Q", 1),
    ],
)
def test_fields_that_no_delta_has_are_refused(at: int, layout: str, value: int) -> None:
    with pytest.raises(CorruptData):
        Delta.from_bytes(resealed(at, layout, value))


def test_another_version_is_named() -> None:
    with pytest.raises(InvalidArgument, match=r"version 2; this rose reads version 1"):
        Delta.from_bytes(resealed(8, "<I", 2))


# ---- a value


def test_a_delta_cannot_be_written_through(packed: tuple[Delta, Bits]) -> None:
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
        ({"count": WIDE + 1}, "1 entries do not fit 2 blocks"),
        ({"digest": (0, 1 << 64)}, "two numbers of 64 bits"),
        ({"digest": (-1, 0)}, "two numbers of 64 bits"),
        ({"entries": np.zeros(1, np.int64)}, "entries of 1 dimensions and int64"),
        ({"entries": np.zeros((1, 1), np.uint64)}, "entries of 2 dimensions"),
        ({"payload": np.zeros(4, np.uint32)[::2]}, "payload of 1 dimensions and uint32 must be"),
        ({"payload": np.zeros(4, ">u4")}, "payload of 1 dimensions"),
    ],
)
def test_fields_that_cannot_be_are_named(fields: dict[str, Any], says: str) -> None:
    sound: dict[str, Any] = {
        "count": 5,
        "block_elements": WIDE,
        "entries": np.zeros(1, np.uint64),
        "payload": np.zeros(0, np.uint32),
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
        with pytest.raises(CorruptData, match=says):
            delta_apply(held, delta, undo=undo)
    with pytest.raises(CorruptData, match=says):
        topk_unpack(delta, base)
    assert held.tolist() == base.tolist()


def entry_of(kind: int, changed_count: int, exceptions: int, words: int) -> int:
    return kind | changed_count << 4 | exceptions << 24 | words << 44


BASE = np.zeros(100, np.uint16)
# Positions 3 and 40 of 100: 5 low bits, 2 + 3 high bits; a step down and an exception of 0x10.
HIGH, LOW, SIGNS = 0b101, 3 | 8 << 5, 0b01
RANK_HIGH, RANK_LOW, VALUES = 0b1, 0b1, 0x10
GAP = [HIGH, LOW, SIGNS, RANK_HIGH, RANK_LOW, VALUES]


def gap_of(*words: int, entry: int | None = None) -> Delta:
    entries = np.array([entry_of(1, 2, 1, 6) if entry is None else entry], np.uint64)
    return Delta(100, WIDE, entries, np.array(words, np.uint32), (0, 0))


def test_the_sound_delta_of_these_tests_is_sound() -> None:
    held = BASE.copy()
    delta_apply(held, gap_of(*GAP))
    assert {i: int(held[i]) for i in np.flatnonzero(held)} == {3: 0xFFFF, 40: 0x10}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([0b1, *GAP[1:]], "positions are not as many"),
        ([0b111, *GAP[1:]], "positions are not as many"),
        ([0b100001, *GAP[1:]], "unused bits of its positions"),
        ([HIGH, LOW | 1 << 10, *GAP[2:]], "unused bits of its positions"),
        ([0b11, 3 | 3 << 5, *GAP[2:]], "positions do not ascend"),
        ([0b11, 4 | 3 << 5, *GAP[2:]], "positions do not ascend"),
        ([0b10001, 3 | 4 << 5, *GAP[2:]], "positions do not ascend"),
        ([HIGH, LOW, 0b101, *GAP[3:]], "unused bits of its signs"),
        ([HIGH, LOW, 0b10, *GAP[3:]], "an exception has a sign"),
        ([*GAP[:3], 0b0, 0b1, VALUES], "ranks are not as many"),
        ([*GAP[:3], 0b10, 0b1, VALUES], "unused bits of its ranks"),
        ([*GAP[:3], 0b1, 0b11, VALUES], "unused bits of its ranks"),
        ([*GAP[:5], 0], "an exception is no change, or a step of one"),
        ([*GAP[:5], 1], "an exception is no change, or a step of one"),
        ([*GAP[:5], VALUES | 1 << 16], "unused bits of its values"),
        (GAP[:5], "the payload ends inside it"),
        ([*GAP, 0], "1 words behind its last block"),
    ],
)
def test_every_fault_of_a_gap_block_is_named(words: list[int], says: str) -> None:
    refused(gap_of(*words), BASE, says)


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        (entry_of(3, 2, 1, 6), "its kind is unknown"),
        (entry_of(15, 0, 0, 0), "its kind is unknown"),
        (entry_of(0, 0, 0, 6), "EMPTY but not 0"),
        (entry_of(0, 1, 0, 0), "EMPTY but not 0"),
        (entry_of(1, 0, 0, 6), "number of changes cannot be"),
        (entry_of(1, 101, 0, 6), "number of changes cannot be"),
        (entry_of(1, 2, 3, 6), "more exceptions than changes"),
        (entry_of(1, 2, 1, 7), "number of words is not that of its changes"),
        (entry_of(1, 30, 1, 6), "number of words is not that of its changes"),
        (entry_of(1, 60, 40, 29), "number of words is not that of its changes"),
        (entry_of(2, 0, 0, 50), "number of changes cannot be"),
        (entry_of(2, 101, 0, 50), "number of changes cannot be"),
        (entry_of(2, 2, 1, 50), "it is RAW and has exceptions"),
        (entry_of(2, 2, 0, 6), "number of words is not that of its elements"),
    ],
)
def test_every_fault_of_an_entry_is_named(entry: int, says: str) -> None:
    refused(gap_of(*GAP, entry=entry), BASE, f"block 0 of the delta: .*{says}")


def test_gap_where_raw_is_smaller_is_refused() -> None:
    # A single element that takes a step: GAP needs two words, RAW one.
    delta = Delta(
        1,
        WIDE,
        np.array([entry_of(1, 1, 0, 2)], np.uint64),
        np.array([1, 0], np.uint32),
        (0, 0),
    )
    refused(delta, np.zeros(1, np.uint16), "GAP where RAW is smaller")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([7, 0], "not change as many elements"),
        ([7 | 7 << 16, 7], "not change as many elements"),
        ([7, 7 | 1 << 16], "half word behind its elements"),
    ],
)
def test_every_fault_of_a_raw_block_is_named(words: list[int], says: str) -> None:
    entries = np.array([entry_of(2, 2, 0, 2)], np.uint64)
    delta = Delta(3, WIDE, entries, np.array(words, np.uint32), (0, 0))
    refused(delta, np.zeros(3, np.uint16), says)


def test_a_later_block_that_is_wrong_keeps_the_first_from_being_applied(
    packed: tuple[Delta, Bits],
) -> None:
    delta, base = packed
    payload = delta.payload.copy()
    payload[-1] ^= 0xFFFF0000  # the last element of the RAW block no longer changes
    payload[-1] &= 0x0000FFFF
    refused(with_words(delta, payload=payload), base, "block 2 of the delta")
    refused(with_words(delta, payload=delta.payload[:-1]), base, "block 2 .* payload ends inside")
    refused(with_words(delta, payload=[*delta.payload, 0]), base, "1 words behind its last block")
    refused(with_words(delta, entries=delta.entries[::-1].copy()), base, "block 0 of the delta")


@given(data=st.data())
def test_damage_is_refused_or_can_be_undone(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    new, base = changed(rng, 300, density=0.1, steps=0.7)
    delta = delta_pack(new, base.copy())
    words = [*delta.entries.view(np.uint32).tolist(), *delta.payload.tolist()]
    for _ in range(data.draw(st.integers(1, 3))):
        words[data.draw(st.integers(0, len(words) - 1))] ^= 1 << data.draw(st.integers(0, 31))
    entries = np.array(words[:2], np.uint32).view(np.uint64)
    damaged = with_words(delta, entries=entries, payload=words[2:])
    held = base.copy()
    try:
        delta_apply(held, damaged)
    except CorruptData:
        assert held.tolist() == base.tolist()
    else:
        delta_apply(held, damaged, undo=True)
        assert held.tolist() == base.tolist()


def test_weights_of_another_size_are_refused(packed: tuple[Delta, Bits]) -> None:
    delta, base = packed
    with pytest.raises(InvalidArgument, match="weights have 5 elements, the delta 32868"):
        delta_apply(base[:5].copy(), delta)
    with pytest.raises(InvalidArgument, match="base has 5 elements, the delta 32868"):
        topk_unpack(delta, base[:5])
