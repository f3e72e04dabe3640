"""Runs the learning runs of this commit that are missing, and appends each to the results.

`make learn` calls this. Seeds come from the commit's hash; each has all arms, which start from one
model. After an interruption, the next call trains the missing arms.
"""

import argparse
import json
import subprocess
import sys
from typing import Final

from bench.lab.suites.frontier_judged import is_clean, judging_seeds
from bench.learning import ARMS, ROOT, RUNS, SEEDS_MIN, read_runs
from rose_lab.machine import commit

TRAIN: Final = ROOT / "examples" / "grpo" / "train.py"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.learning_runs", description=__doc__)
    parser.add_argument("--count", type=int, default=SEEDS_MIN, help="seeds")
    count = parser.parse_args(arguments).count
    here = commit()
    if not (here and is_clean()):
        print("learn: commit the changes first; seeds come from the commit", file=sys.stderr)
        return 2
    for number, seed in enumerate(judging_seeds(here, count)):
        done = {one["arm"] for one in read_runs(RUNS, here) if one["seed"] == seed}
        order = ARMS[number % len(ARMS) :] + ARMS[: number % len(ARMS)]
        if (missing := [arm for arm in order if arm not in done]) and not run(here, seed, missing):
            return 1
    return 0


def run(here: str, seed: int, arms: list[str]) -> bool:
    """Train in the arms, and append the record of each as it ends; return whether all ended."""
    command = [sys.executable, str(TRAIN), f"--seed={seed}", "--arms", *arms]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as training:
        assert training.stdout is not None
        for line in training.stdout:
            if line.startswith('{"seed"'):  # TRL prints its own lines too
                record = {"commit": here, **json.loads(line)}
                with RUNS.open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps(record) + "\n")
                print(f"seed {seed}, {record['arm']}: {record['curve']}", flush=True)
    return training.returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
