"""What crosses before a mover reads: asks, introductions and offers, read as they were written."""

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.errors import CorruptData
from rose.transfer.manifest import CHUNK_BYTES_MAX, Chunk, UpdateKey
from rose.transfer.movers.bounce import Bounce
from rose.transfer.movers.introduction import Introduction
from rose.transfer.wire.asking import ASK_CHUNKS, pack_ask, portions, read_ask
from rose.transfer.wire.berths import BERTHS, HALF_BYTES, HALVES, Berth, read_offer

KEY = UpdateKey(7, 6)
NUMBERS = st.integers(0, (1 << 63) - 1)
CHUNKS = st.lists(st.integers(1, CHUNK_BYTES_MAX), max_size=40).map(
    lambda sizes: [Chunk(tile, size, 1, bytes(32), (0, 0)) for tile, size in enumerate(sizes)]
)


@given(pid=NUMBERS, network=NUMBERS, base=NUMBERS, peer=st.text(max_size=99))
def test_introduction_is_read_as_it_was_written(
    pid: int, network: int, base: int, peer: str
) -> None:
    one = Introduction(pid, network, base, peer)
    assert Introduction.from_json(one.to_json()) == one


@given(
    st.binary()
    | st.sampled_from(
        [
            b"[]",
            b"{}",
            b'{"format": 2, "pid": 1, "network": 1, "base": 1, "peer": ""}',
            b'{"format": 1, "pid": -1, "network": 1, "base": 1, "peer": ""}',
            b'{"format": 1, "pid": true, "network": 1, "base": 1, "peer": ""}',
            b'{"format": 1, "pid": 1, "network": 1.5, "base": 1, "peer": ""}',
            b'{"format": 1, "pid": 1, "network": 1, "base": 1, "peer": 1}',
            b'{"format": 1, "pid": 1, "network": 1, "base": 9223372036854775808, "peer": ""}',
            b'{"format": 1, "pid": 1, "network": 1, "peer": ""}',
            Introduction(1, 1, 1, "x" * ((1 << 16) + 1)).to_json(),
        ]
    )
)
def test_what_introduces_nobody_is_corrupt(content: bytes) -> None:
    with pytest.raises(CorruptData):
        Introduction.from_json(content)


@given(chunks=CHUNKS, nbytes_max=st.integers(1, 3 * CHUNK_BYTES_MAX))
def test_portions_are_all_that_is_wanted_in_order_and_none_is_too_large(
    chunks: list[Chunk], nbytes_max: int
) -> None:
    made = list(portions(chunks, nbytes_max))
    assert [chunk for portion in made for chunk in portion] == chunks
    for portion in made:
        assert portion
        assert len(portion) == 1 or sum(one.nbytes for one in portion) <= nbytes_max


def test_portion_has_no_more_chunks_than_one_ask_takes() -> None:
    chunks = [Chunk(tile, 1, 1, bytes(32), (0, 0)) for tile in range(ASK_CHUNKS + 1)]
    made = [len(portion) for portion in portions(chunks, HALF_BYTES)]
    assert made == [ASK_CHUNKS, 1]


@given(chunks=CHUNKS.filter(bool), n=st.integers(1, 99), base=st.integers(-1, 0))
def test_ask_is_read_as_it_was_written(chunks: list[Chunk], n: int, base: int) -> None:
    key = UpdateKey(n, base)
    assert read_ask(pack_ask(key, chunks)) == (key, tuple(one.tile for one in chunks))


@dataclass
class Porter:
    """A porter's memory."""

    bounce: Bounce


class Served:
    def __init__(self, frames: list[bytes | None]) -> None:
        self._frames = frames

    def chunk(self, key: UpdateKey, tile: int) -> bytes | None:
        assert key == KEY
        return self._frames[tile]


FRAMES = st.lists(st.none() | st.binary(min_size=1, max_size=99), min_size=1, max_size=20)


@given(halves=st.tuples(FRAMES, FRAMES), index=st.integers(0, BERTHS - 1))
def test_offer_says_where_frames_lie_and_halves_do_not_meet(
    halves: tuple[list[bytes | None], ...], index: int
) -> None:
    with Bounce(BERTHS * HALVES * HALF_BYTES) as bounce:
        porter: Any = Porter(bounce)
        berth = Berth(porter, index)
        offers = [
            berth.lay_out(half, Served(frames), KEY, range(len(frames)))
            for half, frames in enumerate(halves)
        ]
        for half, (frames, offer) in enumerate(zip(halves, offers, strict=True)):
            at, sizes = read_offer(offer, len(frames))
            assert at == (HALVES * index + half) * HALF_BYTES
            for frame, size in zip(frames, sizes, strict=True):
                assert (bytes(bounce.copy(at, size)) or None) == frame
                at += size


def test_more_than_a_half_is_refused_to_the_byte() -> None:
    most = [bytes(CHUNK_BYTES_MAX)] * (HALF_BYTES // CHUNK_BYTES_MAX)
    with Bounce(BERTHS * HALVES * HALF_BYTES) as bounce:
        porter: Any = Porter(bounce)
        for berth in (Berth(porter, 0), Berth(porter, BERTHS - 1)):
            assert sum(read_offer(berth.lay_out(1, Served(most), KEY, (0, 1)), 2)[1]) == HALF_BYTES
            with pytest.raises(CorruptData):
                berth.lay_out(1, Served([*most, b"x"]), KEY, (0, 1, 2))


@pytest.mark.parametrize("content", [b"", bytes(8), bytes(8 + 4), bytes(8 + 12), bytes(8 + 9)])
def test_offer_of_another_length_is_corrupt(content: bytes) -> None:
    with pytest.raises(CorruptData):
        read_offer(content, 2)
