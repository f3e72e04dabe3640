"""Mazes: equal words have equal effects, every one has a way, and a group shares its own."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.errors import InvalidArgument
from rose_lab.demo.environments import GridWorld, Observed, task

WORDS = st.text() | st.text("NESW", max_size=3)
SEEDS = st.integers(0, 1 << 40)
WORLDS = st.builds(
    GridWorld,
    size=st.integers(2, 6),
    turns_max=st.integers(10, 14),
    wall_share=st.floats(0, 1),
    shaping=st.sampled_from([0.0, 0.5]),
)


def play(world: GridWorld, seed: int, words: list[str]) -> tuple[list[str], str, list[Observed]]:
    """Return what was said until it was over, the first observation, and all steps."""
    first, said, steps = world.reset(seed), [], []
    for one in words:
        said.append(one)
        steps.append(world.step(one))
        if steps[-1].is_over:
            break
    return said, first, steps


@given(WORLDS, SEEDS, SEEDS, st.lists(WORDS, max_size=14))
def test_an_episode_depends_on_seed_and_words_alone(
    world: GridWorld, seed: int, other: int, words: list[str]
) -> None:
    once = play(world, seed, words)
    play(world, other, words)  # what was played before leaves nothing behind
    assert play(world, seed, words) == once


@given(WORLDS, SEEDS, WORDS)
def test_every_episode_ends_and_takes_nothing_after(world: GridWorld, seed: int, word: str) -> None:
    _, _, steps = play(world, seed, [word] * 100)
    assert steps[-1].is_over
    with pytest.raises(InvalidArgument):
        world.step(word)


@given(SEEDS, st.integers(2, 9), st.floats(0, 1))
def test_every_maze_has_a_way_that_is_worth_one(seed: int, size: int, wall_share: float) -> None:
    world = GridWorld(size=size, turns_max=2 * size, wall_share=wall_share, shaping=0.5)
    maze, cell, said = world.maze(seed), world.maze(seed).start, []
    assert maze.start != maze.goal
    while cell != maze.goal:
        nearer = [
            move
            for move in "NESW"
            if maze.steps_to_goal[maze.after(cell, move)] < maze.steps_to_goal[cell]
        ]
        said.append(nearer[0])
        cell = maze.after(cell, nearer[0])
    _, _, steps = play(world, seed, said)
    assert steps[-1].is_over
    assert "the goal" in steps[-1].observation
    assert sum(step.reward for step in steps) == pytest.approx(1.5)


@given(SEEDS)
def test_a_maze_is_what_its_text_says(seed: int) -> None:
    world = GridWorld(size=5, turns_max=9, wall_share=0.4)
    seen = world.reset(seed)
    maze = world.maze(seed)
    for move in "NESWNESWN":
        at = tuple(map(int, re.findall(r"at (\d),(\d)", seen)[0]))
        assert at not in maze.walls
        is_open = move in re.findall(r"open (\w*):", seen)[0]
        step = world.step(f"i think {move.lower()}: {move}")
        moved = tuple(map(int, re.findall(r"at (\d),(\d)", step.observation)[0])) != at
        assert moved == is_open
        assert step.tool == "move"
        assert len(step.observation) < 60
        if step.is_over:
            break
        seen = step.observation


@given(SEEDS, st.integers(0, 1000), st.integers(2, 9))
def test_a_group_shares_its_task_and_no_world(seed: int, group: int, group_size: int) -> None:
    numbers = range(group * group_size, (group + 1) * group_size)
    tasks = [task(seed, number, group_size=group_size) for number in numbers]
    assert {(one.group, one.seed) for one in tasks} == {(group, tasks[0].seed)}
    assert len({id(one.environment) for one in tasks}) == group_size
    assert task(seed, numbers[-1] + 1, group_size=group_size).group == group + 1
