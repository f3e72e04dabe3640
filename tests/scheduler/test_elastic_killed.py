"""A scheduler's process is killed again and again, and its trajectories come home all the same."""

import itertools
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.forks import FORKS
from tests.scheduler import elastic_process
from tests.scheduler.driver_world import first_prompt, next_prompt, truth, turns_of

TRAJECTORIES = 24
HANG_S = 120.0
# How often one scheduler's process is killed, at most; the life after that may end.
KILLS_EACH = 10


def spoken(trajectory: int) -> tuple[int, ...]:
    """Return all that a trajectory reads and says when nothing happens."""
    prompt = first_prompt(trajectory)
    for turn in range(turns_of(trajectory)):
        prompt = next_prompt(prompt, truth(trajectory, prompt, turn))
    return prompt


def live(folder: Path, life: int, kill: tuple[int, float] | None) -> tuple[int | None, list[Any]]:
    """Run a process, and kill it seconds after it has brought so many turns home.

    Returns:
        Its exit code, and what it reported.
    """
    news, writer = FORKS.Pipe(duplex=False)
    process = FORKS.Process(target=elastic_process.main, args=(folder, life, TRAJECTORIES, writer))
    process.start()
    writer.close()
    alarm = threading.Timer(HANG_S, process.terminate)
    alarm.start()
    reported: list[Any] = []
    try:
        with suppress(EOFError):  # It is dead, or has done all.
            while True:
                if kill is not None and len(reported) >= kill[0]:
                    time.sleep(kill[1])
                    process.kill()
                    kill = None
                reported.append(news.recv())
        process.join()
        return process.exitcode, reported
    finally:
        alarm.cancel()
        process.kill()
        process.join()
        news.close()


def outlive(folder: Path, draw: Random, kills: int, tried: Callable[..., None]) -> int:
    """Kill a scheduler's process up to so many times, and check what the last life brings home."""
    for life in itertools.count():
        # Before anything comes home, while the state is read, or while turns run.
        turns = draw.choice((0, 1, 2, 5))
        delay_s = draw.uniform(0, 0.02 if turns else 0.1)
        code, reported = live(folder, life, (turns, delay_s) if life < kills else None)
        if code == 0:
            break
        assert code == -signal.SIGKILL
        tried("scheduler kills")
    tokens = turns = 0
    for number in range(TRAJECTORIES):
        prompt = first_prompt(number)
        for turn in range(turns_of(number)):
            result = truth(number, prompt, turn)
            prompt = next_prompt(prompt, result)
            tokens, turns = tokens + len(result.tokens), turns + 1
    # Counted over all lives: nothing was lost, and nothing delivered twice.
    assert reported[-1] == (TRAJECTORIES, TRAJECTORIES, turns, tokens)
    said = set((folder / "said").read_text().splitlines())
    assert said == {f"{number} {spoken(number)}" for number in range(TRAJECTORIES)}
    return life


def kill(tmp_path: Path, seed: int, kills: int, tried: Callable[..., None]) -> None:
    draw = Random(seed)
    for world in itertools.count():
        if kills <= 0:
            break
        folder = tmp_path / str(world)
        folder.mkdir()
        kills -= outlive(folder, draw, min(kills, KILLS_EACH), tried)


def test_a_process_that_is_killed_goes_on_where_it_was(tmp_path, tried) -> None:
    kill(tmp_path, 0, 5, tried)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(1, 21))
def test_killed_a_thousand_times_it_goes_on_where_it_was(tmp_path, seed, tried) -> None:
    kill(tmp_path, seed, 50, tried)
