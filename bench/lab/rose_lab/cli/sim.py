"""`rose sim`: simulates a scenario's arms on the same seeds, in virtual time."""

import csv
import math
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import click
import numpy as np
from msgspec.structs import replace
from rich.console import Console

from rose.cli.runs import ends_interrupt
from rose.clock import BootClock
from rose.errors import InvalidArgument
from rose.units import MS_PER_S
from rose_lab.cli.out_folder import try_folder
from rose_lab.cli.sim_report import ScenarioRuns, print_study, summarise_study, summarise_validation
from rose_lab.demo.progress import phases
from rose_lab.demo.report import write_json
from rose_lab.machine import machine_card
from rose_lab.numbers import plain
from rose_lab.sim.scenario.arms import RULES
from rose_lab.sim.scenario.parts import DailyTraffic
from rose_lab.sim.scenario.scenario import Scenario
from rose_lab.sim.scenario.traffic import RATES_WINDOW_MS, Inputs
from rose_lab.sim.study.run import study
from rose_lab.traces.text_file import opened

_RATES_HEADER: Final = ("model", "t_s", "rate_rps")
_EXPECTED: Final = f"expected request rates, with the first columns {','.join(_RATES_HEADER)}"


def read_inputs(scenarios: Iterable[Scenario], *, beside: Path) -> Inputs:
    """Read every file that the scenarios name, each file once.

    Args:
        scenarios: scenarios to read files for.
        beside: folder that relative paths start from.

    Raises:
        InvalidArgument: a file cannot be read or has invalid content.
    """
    rates: dict[str, dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]]] = {}
    for scenario in scenarios:
        for group in scenario.borrowed:
            traffic = group.traffic
            if isinstance(traffic, DailyTraffic) and traffic.rates not in rates:
                rates[traffic.rates] = _rates(beside / traffic.rates)
    return Inputs(rates=rates)


def _rates(path: Path) -> dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]]:
    rates: dict[str, list[float]] = {}
    with opened(path, _EXPECTED) as lines:
        rows = csv.reader(lines)
        if tuple(next(rows, [])[:3]) != _RATES_HEADER:
            raise InvalidArgument(f"{path} line 1: {_EXPECTED}")
        for line, row in enumerate(rows, 2):
            try:
                model, at_s, rate = row[0], float(row[1]), float(row[2])
            except (IndexError, ValueError):
                raise InvalidArgument(f"{path} line {line}: {_EXPECTED}") from None
            of_model = rates.setdefault(model, [])
            if at_s * MS_PER_S != len(of_model) * RATES_WINDOW_MS:
                raise InvalidArgument(
                    f"{path} line {line}: the rates of {model} must be at 0 s, 600 s, 1200 s and "
                    f"so on, but this rate is at {at_s:g} s"
                )
            if not 0 <= rate < math.inf:
                raise InvalidArgument(
                    f"{path} line {line}: the rate must be finite and at least 0, got {rate}"
                )
            of_model.append(rate)
    if not rates or any(max(of_model) == 0 for of_model in rates.values()):
        raise InvalidArgument(f"{path} must have a model, and a rate above 0 for each model")
    return {model: np.array(of_model, dtype=np.float64) for model, of_model in rates.items()}


@click.command()
@click.argument("scenario_path", metavar="SCENARIO.yaml", type=click.Path(path_type=Path))
@click.option(
    "--arms",
    "arm_names",
    metavar="A,B,…",
    help=f"Arms: {', '.join(RULES)}, or rose at a slowdown (rose@0.05). Default: the scenario's.",
)
@click.option("--seeds", "seed_count", type=int, help="Number of the scenario's seeds to run.")
@click.option(
    "--traces",
    type=click.Path(path_type=Path),
    help="Folder of the scenario's trace files; its own folder by default.",
)
@click.option(
    "--validate",
    "validated",
    multiple=True,
    metavar="FILE.yaml",
    type=click.Path(path_type=Path),
    help="Scenario with published measurements: also report the error. May be repeated.",
)
@click.option("--out", "out_dir", default="rose-sim", help="Folder of the report.")
def sim(
    scenario_path: Path,
    *,
    arm_names: str | None,
    seed_count: int | None,
    traces: Path | None,
    validated: tuple[Path, ...],
    out_dir: str,
) -> int:
    """Simulate a cluster with the scheduler's real core, and compare ways to use it.

    The exit status is 0; 1 when a guarantee is broken (a token was lost, or rose made a request of
    serving late); or 130 after an interrupt. An interrupt still reports the simulations so far.
    """
    # Imported here, because it needs the extra `sim`.
    from rose_lab.sim.scenario.yaml_file import read_scenarios  # noqa: PLC0415

    out = Path(out_dir)
    try_folder(out)
    scenarios = [_chosen(one, arm_names, seed_count) for one in read_scenarios(scenario_path)]
    known = [one for path in validated for one in read_scenarios(path)]
    beside = scenario_path.parent if traces is None else traces
    inputs = read_inputs([*scenarios, *known], beside=beside)
    console = Console(highlight=False)
    runs, is_complete = _run([*scenarios, *known], inputs, console)
    report: dict[str, Any] = plain(
        {
            "scenarios": summarise_study(runs[: len(scenarios)]),
            "validation": summarise_validation(runs),
            "is_complete": is_complete,
            "machine": machine_card(),
            "command": shlex.join(["rose", *sys.argv[1:]]),
        }
    )
    write_json(report, out, "sim")
    print_study(report, console)
    console.print(f"report: {out / 'sim.json'}", soft_wrap=True)
    if not is_complete:
        return 130
    return int(
        any(check["holds"] is False for one in report["scenarios"] for check in one["checks"])
    )


def _chosen(scenario: Scenario, arm_names: str | None, seed_count: int | None) -> Scenario:
    if seed_count is not None:
        if not 0 < seed_count <= len(scenario.seeds):
            raise InvalidArgument(
                f"--seeds must be 1 to {len(scenario.seeds)}, the number of seeds of "
                f"{scenario.name}, got {seed_count}"
            )
        scenario = replace(scenario, seeds=scenario.seeds[:seed_count])
    if arm_names is None:
        return scenario
    return replace(scenario, arms=tuple(arm_names.split(",")))


def _run(
    scenarios: Sequence[Scenario], inputs: Inputs, console: Console
) -> tuple[list[ScenarioRuns], bool]:
    """Return the runs, and whether they are complete; an interrupt ends them without an error."""
    runs: list[ScenarioRuns] = []
    wanted = sum(len(one.arms) * len(one.seeds) for one in scenarios)
    with phases(console, BootClock()) as shown, ends_interrupt():
        try:
            for scenario in scenarios:
                runs.append(ScenarioRuns(scenario, ()))

                def on_share(arm: str, seed: int, share: float, name: str = scenario.name) -> None:
                    done = sum(len(one.figures) for one in runs) + min(share, 1.0)
                    shown.advance(f"{name}: {arm}, seed {seed}", done=done, wanted=wanted)

                for one in study(scenario, inputs, on_share=on_share):
                    runs[-1] = ScenarioRuns(scenario, (*runs[-1].figures, one.figures))
        except KeyboardInterrupt:
            console.print("interrupted: reporting the simulations so far")
            return runs, False
    return runs, True
