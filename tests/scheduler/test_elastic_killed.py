"""A scheduler's process is killed again and again, and its trajectories come home all the same."""

import signal
import subprocess
import sys
import threading
from pathlib import Path

from tests.scheduler.front_world import first_prompt, next_prompt, truth, turns_of

TRAJECTORIES = 24
HANG_S = 120.0


def spoken(trajectory: int) -> tuple[int, ...]:
    """Return all that a trajectory reads and says when nothing happens."""
    prompt = first_prompt(trajectory)
    for turn in range(turns_of(trajectory)):
        prompt = next_prompt(prompt, truth(trajectory, prompt, turn))
    return prompt


def live(folder: Path, life: int, *, turns: int | None) -> tuple[int, list[str]]:
    """Run a process until it has brought so many turns home, then kill it; None lets it end."""
    command = [sys.executable, "-m", "tests.scheduler.elastic_process"]
    process = subprocess.Popen(
        [*command, str(folder), str(life), str(TRAJECTORIES)], stdout=subprocess.PIPE, text=True
    )
    alarm = threading.Timer(HANG_S, process.kill)
    alarm.start()
    lines: list[str] = []
    try:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if turns is not None and len(lines) >= turns:
                process.send_signal(signal.SIGKILL)
                break
        return process.wait(), lines
    finally:
        alarm.cancel()
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_process_that_is_killed_goes_on_where_it_was(tmp_path) -> None:
    for life, turns in enumerate((2, 9, 20)):
        code, _ = live(tmp_path, life, turns=turns)
        assert code == -signal.SIGKILL
    code, lines = live(tmp_path, 3, turns=None)
    assert code == 0
    *_, last = lines
    tokens = turns = 0
    for number in range(TRAJECTORIES):
        prompt = first_prompt(number)
        for turn in range(turns_of(number)):
            result = truth(number, prompt, turn)
            prompt = next_prompt(prompt, result)
            tokens, turns = tokens + len(result.tokens), turns + 1
    # Counted over all lives: nothing was lost, and nothing delivered twice.
    assert last.split() == ["over", *map(str, (TRAJECTORIES, TRAJECTORIES, turns, tokens))]
    said = set((tmp_path / "said").read_text().splitlines())
    assert said == {f"{number} {spoken(number)}" for number in range(TRAJECTORIES)}
