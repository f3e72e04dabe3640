"""Simulates scenarios one after another, and says how far it is."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from rose.cli.interrupts import ends_interrupt
from rose.cli.sim_report import ScenarioRuns
from rose.config import read_environment
from rose.sim.scenario.arms import Arm
from rose.sim.scenario.scenario import Scenario
from rose.sim.scenario.traffic import Inputs
from rose.sim.study.figures import ArmFigures
from rose.sim.study.run import study

OnShare = Callable[[str, float], None]


def run_scenarios(
    scenarios: Sequence[Scenario], inputs: Inputs, console: Console
) -> tuple[list[ScenarioRuns], bool]:
    """Return what was run, and whether it is all; an interrupt ends it early and is no error."""
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
