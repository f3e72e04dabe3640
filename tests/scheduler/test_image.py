"""The image of a core: a restored core goes on as if nothing had happened."""

import random
import struct
import zlib

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from rose.errors import CorruptData
from rose.scheduler import PlacementPolicy, SchedulerSettings
from rose.scheduler.core import SchedulerCore
from tests.scheduler.rig import SETTINGS
from tests.scheduler.world import World

HEADER = struct.Struct("<8sIIQ")
VERSION = 4


def with_header(body: bytes) -> bytes:
    """Return an image with a right header and any body."""
    return HEADER.pack(b"rosecore", VERSION, zlib.crc32(body), len(body)) + body


def image_of_a_busy_core(ticks: int = 80) -> bytes:
    world = World(5, PlacementPolicy.JOINT, trajectories=24)
    for _ in range(ticks):
        world.tick()
    return world.audit.core.snapshot()


@pytest.mark.parametrize("policy", PlacementPolicy)
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=15, deadline=None)
def test_a_core_restored_before_any_step_takes_the_same_actions(
    policy: PlacementPolicy, seed: int
) -> None:
    world = World(seed, policy, trajectories=24)
    for _ in range(100):
        before = world.audit.core.snapshot()
        world.tick()
        events, now_ns, actions = world.audit.history[-1]
        again = SchedulerCore.restored(before)
        assert again.snapshot() == before
        assert again.step(events, now_ns) == actions
        assert again.stats() == world.audit.core.stats()
        assert again.snapshot() == world.audit.core.snapshot()


@pytest.mark.parametrize("policy", PlacementPolicy)
def test_an_image_has_the_policy_and_the_settings(policy: PlacementPolicy) -> None:
    settings = SchedulerSettings(max_staleness=3, tuning={"tail_seats": 7.0})
    image = SchedulerCore(settings, policy).snapshot()
    assert image == SchedulerCore.restored(image).snapshot()
    assert image != SchedulerCore(SETTINGS, policy).snapshot()


def test_any_flipped_bit_is_refused() -> None:
    image = image_of_a_busy_core()
    rng = random.Random(3)
    for _ in range(300):
        at = rng.randrange(len(image))
        wrong = bytearray(image)
        wrong[at] ^= 1 << rng.randrange(8)
        with pytest.raises(CorruptData):
            SchedulerCore.restored(bytes(wrong))


def test_an_image_cut_short_anywhere_is_refused() -> None:
    image = image_of_a_busy_core()
    for size in [*range(64), *range(64, len(image), 97)]:
        with pytest.raises(CorruptData):
            SchedulerCore.restored(image[:size])
    with pytest.raises(CorruptData):
        SchedulerCore.restored(image + b"\0")


@pytest.mark.parametrize(
    ("image", "why"),
    [
        (b"", "shorter"),
        (b"\0" * 400, "magic"),
        (HEADER.pack(b"rosecore", 999, 0, 0), "version 999"),
        (HEADER.pack(b"rosecore", VERSION, 0, 1), "length"),
        (HEADER.pack(b"rosecore", VERSION, 1, 0), "checksum"),
        (with_header(b""), "cut short"),
        (with_header(b"\xff" * 400), "a value that does not exist"),
        (with_header(b"\0" * 320 + b"\xff" * 8), "cut short"),  # a count beyond the image's end
    ],
)
def test_a_bad_image_is_refused_with_the_reason(image: bytes, why: str) -> None:
    with pytest.raises(CorruptData, match=why):
        SchedulerCore.restored(image)


def test_an_index_outside_its_table_is_refused() -> None:
    """The checksum covers the wrong index too."""
    body = image_of_a_busy_core()[HEADER.size :]
    refused = 0
    for at in range(len(body) - 8):
        if int.from_bytes(body[at : at + 8], "little") not in (1, 2):
            continue
        image = with_header(body[:at] + struct.pack("<q", 2**40) + body[at + 8 :])
        try:
            SchedulerCore.restored(image).snapshot()  # It was no index.
        except CorruptData:
            refused += 1
    assert refused > 30, refused
