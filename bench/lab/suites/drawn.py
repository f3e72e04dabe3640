"""The drawn scenarios, which judge the scheduler.

    python -m bench.lab.suites.drawn --count 20
    python -m bench.lab.suites.drawn --runs 2 --json bench/results/drawn-200.json

The first command simulates every arm of the first 20 seeds of bench/scenarios/drawn_seeds.txt,
prints how rose compares with each baseline, and lists the scenarios that rose loses. The second
command makes two runs of every scenario, because chance moves a single run by about 1 %, and writes
the first table to a file. An interrupted run still prints the scenarios that it simulated.
"""

import argparse
import shlex
import sys
import time
from pathlib import Path
from typing import Final

from rich.console import Console

from bench.lab.suites.drawn_json import drawn_json
from bench.lab.suites.drawn_runs import drawn_seeds, run_seed, simulated
from bench.lab.suites.drawn_table import print_drawn
from bench.usage import EXIT_MENDABLE, Parser
from rose.errors import RoseError
from rose.whole_file import write_whole
from rose_lab.sim.study.figures import ArmFigures

_EXIT_INTERRUPTED: Final = 130
_LOG_WIDTH: Final = 180


def main(arguments: list[str]) -> int:
    """Simulate the requested runs, and print the results, also after an interrupt."""
    options = _parse(arguments)
    console = Console(width=None if sys.stdout.isatty() else _LOG_WIDTH, highlight=False)
    figures: list[ArmFigures] = []
    status = 0
    try:
        seeds = options.seeds or drawn_seeds(options.count)
        runs = [run_seed(one, run) for run in range(options.runs) for one in seeds]
        began_s = time.perf_counter()
        for number, done in enumerate(simulated(runs, processes=options.processes), 1):
            figures += done
            taken_s = time.perf_counter() - began_s
            print(
                f"{number} of {len(runs)}: seed {done[0].seed}, {taken_s:.0f} s",
                file=sys.stderr,
            )
    except KeyboardInterrupt:
        status = _EXIT_INTERRUPTED
    except RoseError as error:
        print(f"drawn: {error}", file=sys.stderr)
        return EXIT_MENDABLE
    print_drawn(figures, console)
    if options.json and not status:
        write_whole(options.json, drawn_json(figures, command=_command(options)).encode())
    return status


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = Parser("drawn", prog="python -m bench.lab.suites.drawn", description=__doc__)
    parser.add_argument("--count", type=int, help="number of seeds, from the first; all by default")
    parser.add_argument("--seeds", type=_seeds, help="seeds, separated by commas")
    parser.add_argument("--runs", type=int, default=1, help="runs of each scenario")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", type=Path, help="file for the figures of the first table")
    options = parser.parse_args(arguments)
    least = min(options.processes, options.runs, 1 if options.count is None else options.count)
    if least < 1:
        parser.error("give at least one process, one run and one seed")
    return options


def _command(options: argparse.Namespace) -> str:
    """Return the command that reproduces the figures."""
    chosen = []
    if options.seeds:
        chosen = ["--seeds", ",".join(map(str, options.seeds))]
    elif options.count is not None:
        chosen = ["--count", str(options.count)]
    if options.runs > 1:
        chosen += ["--runs", str(options.runs)]
    return shlex.join(["python", "-m", "bench.lab.suites.drawn", *chosen])


def _seeds(text: str) -> tuple[int, ...]:
    return tuple(int(seed) for seed in text.split(","))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
