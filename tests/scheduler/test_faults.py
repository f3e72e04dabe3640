"""Whatever workers and the network do: each token once, in order, on one live lease, and an end."""

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from rose.scheduler import PlacementPolicy
from tests.scheduler.world import World

TRAJECTORIES = 24
TICKS_OF_FAULTS = 150
TICKS_MAX = 3000  # bounds a hang


@pytest.mark.parametrize("policy", PlacementPolicy)
@given(seed=st.integers(0, 2**32 - 1))
@example(seed=7508)  # One turn is recalled, started and recalled again at one time.
def test_every_token_is_delivered_once_and_in_order_and_everything_ends(
    policy: PlacementPolicy, seed: int
) -> None:
    live_through(World(seed, policy, trajectories=TRAJECTORIES))


def live_through(world: World, ticks_of_faults: int = TICKS_OF_FAULTS) -> None:
    """Let faults happen, end them, and check that all that began has come to its end."""
    for _ in range(ticks_of_faults):
        world.tick()
    world.heal()
    for _ in range(TICKS_MAX):
        if world.audit.core.stats().done == world.trajectories:
            break
        world.tick()
    stats = world.audit.core.stats()
    assert world.done == set(range(world.trajectories)), stats
    assert world.values == {}
    assert stats.done == world.trajectories
    assert stats.waiting == stats.queued == stats.running == stats.recalled == 0
    assert set(stats.used_kv_tokens.values()) == {0}
    world.audit.replay()


def test_the_faults_do_happen() -> None:
    recalls = stale = ignored = resumed = 0
    for seed in range(5):
        world = World(seed, PlacementPolicy.JOINT, trajectories=TRAJECTORIES)
        for _ in range(400):
            world.tick()
        stats = world.audit.core.stats()
        recalls += stats.recalls
        resumed += stats.resumed
        stale += stats.stale_events
        ignored += stats.tokens_ignored
    assert min(recalls, resumed, stale, ignored) > 20


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_million_events() -> None:
    events = seed = 0
    policies = list(PlacementPolicy)
    while events < 1_000_000:
        world = World(seed, policies[seed % len(policies)], trajectories=150)
        live_through(world, ticks_of_faults=800)
        events += world.audit.events
        seed += 1
