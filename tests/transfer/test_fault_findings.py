"""Faults that the fault runs found, each as its shortest story."""

from random import Random

from rose.transfer import Version
from rose.transfer.publishing.store import MemoryStore
from rose.transfer.receiving.staging import ReceiverState
from rose.transfer.relaying.relay import Relay
from tests.transfer.faults.shards import EVERY, flip
from tests.transfer.faults.world import World


def world_without_relays() -> World:
    """Return a world in which receivers pull from the publisher, each for itself."""
    for seed in range(100):
        world = World(seed)
        if not world.relays:
            return world
    raise AssertionError("every world has a relay")


def follow(world: World, name: str) -> None:
    for _ in range(8):
        world.receivers[name].round()
        world.receivers[name].step(1 << 10)
        world.receivers[name].check()


def publish(world: World, tiles: set[int]) -> Version:
    """Publish until a version changes none of some tiles, and return it."""
    for number in range(1000):
        world.trainer.publish(Random(number))
        life = world.trainer.life
        assert life is not None
        newest = life.source.wait_manifests(life.publisher.version.n - 1, 0)[-1]
        if not tiles & {chunk.tile for chunk in newest.chunks}:
            return newest.version
        for name in world.receivers:
            follow(world, name)
    raise AssertionError("every version changes them")


def test_shard_changed_by_a_crash_is_never_reported_as_its_version() -> None:
    world = world_without_relays()
    left = world.receivers["left"]
    follow(world, "left")
    assert left.version == world.trainer.version
    # The process dies in the middle of a commit, and is told the name that was noted before it.
    newest = publish(world, {0})
    held = left.version
    flip(left.memory.held, 0, 1, 1)
    left.begin(Random(1), held=held)
    follow(world, "left")
    assert left.version == newest
    world.history.check_bits("left", newest, left.memory.held)


def test_receiver_that_found_a_tile_to_be_another_takes_the_version_that_it_could_not() -> None:
    world = world_without_relays()
    both = world.receivers["both"]
    follow(world, "both")
    # Known digests say that tile 2 is as it was, so a snapshot leaves it out.
    both.digests = None
    both.corrupt(Random(0))
    world.trainer.kill()
    world.trainer.start(Random(3))
    follow(world, "both")
    assert both.staging.state is ReceiverState.SYNCED
    assert both.version == world.trainer.version
    world.history.check_bits("both", both.version, both.memory.held)


def test_relay_asks_again_for_a_snapshot_whose_tiles_nobody_keeps_any_more() -> None:
    life = world_without_relays().trainer.life
    assert life is not None
    relay = Relay(life.source, store=MemoryStore(), patience_s=0.0)
    relay.round(0)
    n = life.publisher.version.n
    snapshot = relay.snapshot(n, EVERY)
    assert snapshot is not None
    reads, life.log._read_whole = life.log._read_whole, lambda _n, _tile: None
    assert relay.chunk(snapshot.key, 3) is None
    life.log._read_whole = reads
    again = relay.snapshot(n, EVERY)
    assert again == snapshot
    assert relay.chunk(snapshot.key, 3) is not None
