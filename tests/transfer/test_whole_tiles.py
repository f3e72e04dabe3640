"""Whole tiles of several versions lie beside each other, within a limit."""

from hypothesis import given
from hypothesis import strategies as st

from rose.transfer.manifest import WHOLE, UpdateKey
from rose.transfer.publishing.log import VersionLog, WholeTiles
from rose.transfer.publishing.row_publisher import RowPublisher
from tests.transfer.worker import TILE, changed, weights

Kept = list[tuple[int, dict[int, int]]]
kept = st.lists(
    st.tuples(st.integers(1, 4), st.dictionaries(st.integers(0, 5), st.integers(0, 9))),
    max_size=20,
)


@given(kept, st.integers(1, 60))
def test_the_last_ones_are_there_and_others_within_the_limit(seeds: Kept, bytes_max: int) -> None:
    whole = WholeTiles()
    given_frames: dict[tuple[UpdateKey, int], bytes] = {}
    for n, sizes in seeds:
        key = UpdateKey(n, WHOLE)
        frames = {tile: bytes([n]) * size for tile, size in sizes.items()}
        given_frames |= {(key, tile): frame for tile, frame in frames.items()}
        whole.keep(key, frames, bytes_max=bytes_max)
        assert all(whole.get(key, tile) == frame for tile, frame in frames.items())
        there = {at: whole.get(*at) for at in given_frames if whole.get(*at) is not None}
        assert all(given_frames[at] == frame for at, frame in there.items())
        assert whole.nbytes == sum(len(frame or b"") for frame in there.values())
        assert whole.nbytes <= max(bytes_max, sum(map(len, frames.values())))


def test_who_asks_for_another_version_takes_nobody_the_tiles_of_the_first() -> None:
    log = VersionLog()
    bits = weights(1)
    publisher = RowPublisher(bits, "run", 1, 1, log, tile_elements=TILE)
    publisher.publish(changed(bits, 2))
    first, second = log.seed(1, [0, 3]), log.seed(2, [0, 3])
    assert first is not None
    assert second is not None
    for seed in (first, second):
        for chunk in seed.chunks:
            frame = log.chunk(seed.key, chunk.tile)
            assert frame is not None
            assert len(frame) == chunk.nbytes
