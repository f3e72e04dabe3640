"""Whatever workers and the network do: each token once, in order, on one live lease, and an end."""

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from rose.scheduler import PlacementPolicy
from tests.scheduler.world import World

TRAJECTORIES = 24
TICKS_OF_FAULTS = 150
TICKS_MAX = 3000  # bounds a hang


@pytest.mark.parametrize("policy", PlacementPolicy)
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_every_token_is_delivered_once_and_in_order_and_everything_ends(
    policy: PlacementPolicy, seed: int
) -> None:
    world = World(seed, policy, trajectories=TRAJECTORIES)
    for _ in range(TICKS_OF_FAULTS):
        world.tick()
    world.heal()
    for _ in range(TICKS_MAX):
        if world.audit.core.stats().done == TRAJECTORIES:
            break
        world.tick()
    stats = world.audit.core.stats()
    assert world.done == set(range(TRAJECTORIES)), stats
    assert world.values == {}
    assert stats.done == TRAJECTORIES
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
