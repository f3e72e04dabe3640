"""Only large changes are sent: the others wait in the shadow, and none is lost."""

import math

import numpy as np
import pytest

from bench.row_publisher import RowPublisher
from rose.errors import InvalidArgument, OutOfMemory
from rose.transfer import Delta, ShardViews, delta_apply
from rose.transfer.codec.operations import topk_pack
from rose.transfer.publishing.contributor import Contributor
from rose.transfer.publishing.log import VersionLog
from rose.transfer.publishing.selection import Selection, drift_of
from rose.transfer.tiles import Tiles
from tests.transfer.lr_law import bits_of_floats
from tests.transfer.worker import TILE, TILES, Bits, Worker

COUNT = TILES.count


def floats(bits: Bits) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def before_and_after(seed: int = 1) -> tuple[Bits, Bits]:
    """Return bf16 weights, and the same after a step in which each moved by another size."""
    rng = np.random.default_rng(seed)
    old = rng.normal(0, 1, COUNT)
    return bits_of_floats(old, 16), bits_of_floats(old + rng.normal(0, 0.3, COUNT), 16)


def publisher_of(bits: Bits, log: VersionLog, selection: Selection | None) -> RowPublisher:
    return RowPublisher(bits, "run", 1, 1, log, tile_elements=TILE, selection=selection)


def test_largest_changes_of_each_tile_are_sent_and_receivers_hold_the_shadow() -> None:
    old, new = before_and_after()
    log = VersionLog()
    publisher = publisher_of(old, log, Selection(share=0.1))
    [contributor] = publisher._contributors
    with Worker(log, old) as worker:
        worker.follow(publisher.publish(new).version)
        held = worker.bits
    shadow = np.concatenate([contributor._shadow.bits(tile.index) for tile in TILES])
    assert np.array_equal(held, shadow)
    change = np.abs(floats(new) - floats(old))
    for tile in TILES:
        sent = held[tile.where] != old[tile.where]
        assert 0 < sent.sum() <= math.ceil(0.1 * tile.count)
        # What stays is no larger than what went, up to the precision of a key.
        assert change[tile.where][~sent].max() <= change[tile.where][sent].min() * (1 + 2**-7)


def test_changes_left_out_come_with_later_versions() -> None:
    old, new = before_and_after()
    log = VersionLog()
    publisher = publisher_of(old, log, Selection(share=0.2))
    unsent = []
    with Worker(log, old) as worker:
        for _ in range(12):
            worker.follow(publisher.publish(new).version)
            unsent.append(publisher.drift.unsent)
        assert np.array_equal(worker.bits, new)
    assert unsent == sorted(unsent, reverse=True)
    assert unsent[0] > 0 == unsent[-1]


def test_old_changes_are_sent_whatever_their_size() -> None:
    old, new = before_and_after()
    publisher = publisher_of(old, VersionLog(), Selection(least=1e9, age_limit=3))
    assert [publisher.publish(new).changed for _ in range(3)] == [0, 0, 0]
    assert publisher.drift.unsent == np.count_nonzero(old != new)
    assert publisher.publish(new).changed == np.count_nonzero(old != new)
    assert publisher.drift.unsent == 0


def test_least_change_is_a_border() -> None:
    old, new = before_and_after()
    publisher = publisher_of(old, VersionLog(), Selection(least=0.25))
    manifest = publisher.publish(new)
    change = np.abs(floats(new) - floats(old))
    assert manifest.changed == np.count_nonzero(change >= 0.25)
    assert 0 < publisher.drift.largest < 0.25


def test_drift_is_what_a_plain_sum_says() -> None:
    old, new = before_and_after()
    new[5] = 0x7F80  # infinite
    ages = np.zeros(COUNT, np.uint8)
    ages[9] = 3
    drift = drift_of(new, old, ages)
    off = np.where(old == new, 0, floats(new) - floats(old))
    assert (drift.elements, drift.unsent) == (COUNT, np.count_nonzero(old != new))
    assert drift.largest == drift.square == math.inf
    new[5] = old[5]
    off[5] = 0
    drift = drift_of(new, old, ages) + drift_of(old, old, ages)
    assert (drift.elements, drift.age) == (2 * COUNT, 3)
    assert drift.square == pytest.approx((off**2).sum())
    both = (floats(new) ** 2).sum() + (floats(old) ** 2).sum()
    assert drift.relative == pytest.approx(math.sqrt((off**2).sum() / both))
    assert drift.largest == np.abs(off).max()


def test_refused_version_leaves_shadow_and_ages() -> None:
    old, new = before_and_after()

    class Full(VersionLog):
        is_full = True

        def append(self, *arguments: object) -> None:
            if self.is_full:
                raise OutOfMemory("planted")
            super().append(*arguments)  # type: ignore[arg-type]

    log = Full()
    publisher = publisher_of(old, log, Selection(least=1e9, age_limit=2))
    for _ in range(5):  # they would be due by now, had these versions been
        with pytest.raises(OutOfMemory):
            publisher.publish(new)
    log.is_full = False
    assert [publisher.publish(new).changed > 0 for _ in range(3)] == [False, False, True]


def test_invalid_selection_is_refused() -> None:
    for fields in [{}, {"share": 0.1, "least": 1.0}, {"share": 0}, {"share": 1.5}, {"least": 0}]:
        with pytest.raises(InvalidArgument):
            Selection(**fields)
    for fields in [{"least": math.nan}, {"least": math.inf}, {"share": 1, "age_limit": 256}]:
        with pytest.raises(InvalidArgument):
            Selection(**fields)
    tiles = Tiles([8], [8], "0" * 64)
    views = ShardViews({0: (np.zeros(8, np.uint8),)})
    with pytest.raises(InvalidArgument, match="bf16"):
        Contributor(views, tiles, selections={0: Selection(share=0.5)})


def test_smallest_change_that_has_a_key_is_sent_by_any_threshold() -> None:
    shadow = np.array([0x0080, 0x0001], np.uint16)  # the smallest normal number, a subnormal one
    new = np.array([0x0100, 0x0002], np.uint16)
    delta: Delta = topk_pack(new, shadow, least=1e-45)
    assert delta.changed == 1
    held = np.array([0x0080, 0x0001], np.uint16)
    delta_apply(held, delta)
    assert held.tolist() == [0x0100, 0x0001]
    for least in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(InvalidArgument, match="least"):
            topk_pack(new, shadow, least=least)
