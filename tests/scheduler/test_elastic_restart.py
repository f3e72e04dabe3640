"""The scheduler is killed at any step and goes on: nothing lost, nothing said twice."""

import itertools

import pytest

from rose.scheduler import PlacementPolicy, driver_trajectory, durable
from tests.scheduler.driver_world import DriverWorld

KILLS = ("before", "after", "behind", "unsaved")


@pytest.fixture(autouse=True)
def a_checkpoint_takes_many_steps(monkeypatch) -> None:
    monkeypatch.setattr(driver_trajectory, "SLICE_TRAJECTORIES", 1)
    monkeypatch.setattr(durable, "CHECKPOINT_S", 0.02)
    monkeypatch.setattr(durable, "REJOIN_S", 0.5)


def run(world: DriverWorld, kills) -> None:
    for kill_at in kills:
        if world.is_done():
            return
        world.tick(kill_at)


@pytest.mark.parametrize("policy", PlacementPolicy)
def test_without_kills_every_turn_is_that_of_an_uninterrupted_run(tmp_path, policy) -> None:
    world = DriverWorld(tmp_path / "scheduler", 0, trajectories=30, policy=policy)
    run(world, itertools.repeat(None))
    world.assert_accounted()
    assert world.durable.rollouts.state.counts.resumed > 3


@pytest.mark.parametrize("seed", range(2))
def test_killed_again_and_again_it_still_brings_every_turn_home(tmp_path, seed) -> None:
    world = DriverWorld(tmp_path / "scheduler", seed, trajectories=6, faults=0.5)
    kills = itertools.cycle(one for kill_at in KILLS for one in (None, None, kill_at))
    run(world, kills)
    world.assert_accounted()
    assert world.kills > 15


@pytest.mark.parametrize("seed", range(2))
def test_a_checkpoint_that_was_made_while_steps_went_on_is_gone_on_from(tmp_path, seed) -> None:
    world = DriverWorld(tmp_path / "scheduler", seed, trajectories=12)
    kills = itertools.cycle([*[None] * 18, "after"])
    run(world, kills)
    world.assert_accounted()
    assert min(world.kills, world.slow_checkpoints) > 1


def test_killed_once_at_any_step_of_one_run(tmp_path) -> None:
    steps = 0
    for at in itertools.count(step=3):  # no multiple of the kinds: each of them comes everywhere
        world = DriverWorld(tmp_path / f"scheduler-{at}", 7, trajectories=4)
        kills = [None] * at + [KILLS[at % len(KILLS)]]
        run(world, itertools.chain(kills, itertools.repeat(None)))
        world.assert_accounted()
        steps = max(steps, at)
        if world.kills == 0:
            break  # It was over before it could be killed.
    assert steps > 25
