"""`rose sim`: a scenario's arms on the same seeds, in virtual time."""

import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from rose.cli.interrupts import ends_interrupt
from rose.cli.machine import machine_card
from rose.cli.scenario_inputs import read_inputs
from rose.cli.sim_page import write_study
from rose.cli.sim_report import ScenarioRuns, summarise_study
from rose.cli.sim_table import print_study
from rose.config import read_environment
from rose.errors import InvalidArgument, Unavailable
from rose.sim.scenario.arms import Arm
from rose.sim.scenario.scenario import Scenario
from rose.sim.scenario.traffic import Inputs
from rose.sim.study.figures import ArmFigures
from rose.sim.study.run import study

OnShare = Callable[[str, float], None]


@click.command()
@click.argument("scenario_path", metavar="SCENARIO.yaml", type=click.Path(path_type=Path))
@click.option(
    "--arms",
    "arm_names",
    metavar="A,B,…",
    help=f"Of {', '.join(one.value for one in Arm)}; the scenario's by default.",
)
@click.option("--seeds", "seed_count", type=int, help="Only so many of the scenario's seeds.")
@click.option(
    "--traces",
    type=click.Path(path_type=Path),
    help="Folder of the files that the scenario names; its own by default.",
)
@click.option(
    "--out", "out_dir", default="rose-sim", show_default=True, help="Folder of the report."
)
def sim(
    scenario_path: Path,
    arm_names: str | None,
    seed_count: int | None,
    traces: Path | None,
    out_dir: str,
) -> int:
    """Simulate a cluster with the scheduler's real core, and compare what could be done with it.

    The exit status is 0, 1 when something does not hold that must (a token was lost, a request of
    serving was late because of rose), or 130 after an interrupt: what was done until then is
    reported.
    """
    out = Path(out_dir)
    if out.exists() and not out.is_dir():
        raise InvalidArgument(f"--out {out_dir} is a file: name a folder")
    scenarios = [_chosen(one, arm_names, seed_count) for one in _read(scenario_path)]
    inputs = read_inputs(scenarios, beside=scenario_path.parent if traces is None else traces)
    console = Console(highlight=False)
    runs, is_complete = _run(scenarios, inputs, console)
    report: dict[str, Any] = {
        "scenarios": summarise_study(runs),
        "is_complete": is_complete,
        "machine": machine_card(),
        "command": shlex.join(["rose", *sys.argv[1:]]),
    }
    write_study(report, out)
    print_study(report, console)
    console.print(f"report: {out / 'sim.html'}", soft_wrap=True)
    if not is_complete:
        return 130
    return int(
        any(check["holds"] is False for one in report["scenarios"] for check in one["checks"])
    )


def _read(path: Path) -> Sequence[Scenario]:
    try:
        from rose.sim.scenario.yaml_file import read_scenarios  # noqa: PLC0415 (an extra)
    except ImportError as error:
        raise Unavailable(
            f"scenario files need {error.name}, which is not installed; install rose-rl[sim]"
        ) from None
    return read_scenarios(path)


def _chosen(scenario: Scenario, arm_names: str | None, seed_count: int | None) -> Scenario:
    if seed_count is not None:
        if not 0 < seed_count <= len(scenario.seeds):
            raise InvalidArgument(
                f"--seeds {seed_count}: {scenario.name} has {len(scenario.seeds)}; give 1 to that"
            )
        scenario = replace(scenario, seeds=scenario.seeds[:seed_count])
    if arm_names is None:
        return scenario
    known = {one.value: one for one in Arm}
    names = arm_names.split(",")
    for name in names:
        if name not in known:
            raise InvalidArgument(f"--arms {name} is none; there are {', '.join(known)}")
    return replace(scenario, arms=tuple(known[name] for name in names))


def _run(
    scenarios: Sequence[Scenario], inputs: Inputs, console: Console
) -> tuple[list[ScenarioRuns], bool]:
    """Run all there is to run; an interrupt ends it early and is not an error."""
    runs: list[ScenarioRuns] = []
    done: list[ArmFigures] = []
    with _progress(console, scenarios) as on_share, ends_interrupt():
        try:
            for scenario in scenarios:
                done = []
                runs.append(ScenarioRuns(scenario, ()))
                hear = partial(_hear, on_share, scenario.name)
                for one in study(scenario, inputs, on_share=hear):
                    done.append(one.figures)
                    runs[-1] = ScenarioRuns(scenario, tuple(done))
                    on_share("", 1.0)
        except KeyboardInterrupt:
            console.print("interrupted: reporting what there is")
            return runs, False
    return runs, True


def _hear(on_share: OnShare, name: str, arm: Arm, seed: int, share: float) -> None:
    on_share(f"{name}: {arm.value}, seed {seed}", share)


@contextmanager
def _progress(console: Console, scenarios: Sequence[Scenario]) -> Iterator[OnShare]:
    """Show what is simulated, and how much of all there is, where somebody looks."""
    is_quiet = read_environment().is_ci or not console.is_terminal
    columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    total = sum(len(one.arms) * len(one.seeds) for one in scenarios)
    whole = 0
    with Progress(*columns, console=console, disable=is_quiet, transient=True) as progress:
        task = progress.add_task("", total=total)

        def on_share(what: str, share: float) -> None:
            nonlocal whole
            if not what:  # one more is done
                whole += 1
                progress.update(task, completed=whole)
            else:
                progress.update(task, description=what, completed=whole + min(share, 1.0))

        yield on_share
