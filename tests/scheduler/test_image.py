"""The image of a core: what is restored from it goes on as if nothing had happened."""

import random
import struct
import zlib
from contextlib import suppress

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from rose.errors import CorruptData, InvalidArgument
from rose.scheduler import PlacementPolicy, SchedulerSettings
from rose.scheduler.core import SchedulerCore
from tests.scheduler.rig import SETTINGS
from tests.scheduler.world import World

HEADER = struct.Struct("<8sIIQ")


def image_of_a_busy_core(ticks: int = 80) -> bytes:
    world = World(5, PlacementPolicy.JOINT, trajectories=24)
    for _ in range(ticks):
        world.tick()
    return world.audit.core.snapshot()


@pytest.mark.parametrize("policy", PlacementPolicy)
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=15, deadline=None)
def test_core_restored_before_any_step_takes_the_same_actions(
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
def test_image_has_the_policy_and_the_settings(policy: PlacementPolicy) -> None:
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


def test_image_cut_short_anywhere_is_refused() -> None:
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
        (HEADER.pack(b"rosecore", 3, 1, 0), "checksum"),
        (HEADER.pack(b"rosecore", 3, 0, 0), "contradicts"),
    ],
)
def test_what_is_no_image_is_refused_with_its_reason(image: bytes, why: str) -> None:
    with pytest.raises(CorruptData, match=why):
        SchedulerCore.restored(image)


def test_nonsense_under_a_right_checksum_never_breaks_the_core() -> None:
    """Bytes that nobody wrote by accident: refused, or a core that goes on as best it can."""
    world = World(5, PlacementPolicy.JOINT, trajectories=24)
    for _ in range(80):
        world.tick()
    body = world.audit.core.snapshot()[HEADER.size :]
    past = len(world.audit.history)
    for _ in range(60):
        world.tick()
    rng = random.Random(4)
    refused = 0
    for _ in range(1000):
        wrong = bytearray(body)
        at = rng.randrange(len(wrong) - 8)
        numbers = [struct.pack("<q", rng.randrange(40)), struct.pack("<d", float("nan"))]
        wrong[at : at + 8] = rng.choice([b"\xff" * 8, b"\0" * 8, rng.randbytes(8), *numbers])
        header = HEADER.pack(b"rosecore", 3, zlib.crc32(wrong), len(wrong))
        try:
            core = SchedulerCore.restored(header + bytes(wrong))
        except CorruptData:
            refused += 1
            continue
        with suppress(InvalidArgument):  # what happened contradicts what the image says
            for events, now_ns, _ in world.audit.history[past:]:
                core.step(events, now_ns)
        core.stats()
        core.snapshot()
    assert 400 < refused < 900
