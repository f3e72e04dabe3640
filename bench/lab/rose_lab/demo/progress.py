"""Progress display of long commands."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from rose.clock import Clock
from rose.config import read_environment
from rose.units import NS_PER_S


class Phases:
    """Shows the current phase: a live line on a terminal, else one printed line per phase.

    Args:
        console: output.
        clock: time source.
        progress: the live line; None prints lines instead.
    """

    def __init__(self, console: Console, clock: Clock, progress: Progress | None) -> None:
        self._console = console
        self._clock = clock
        self._progress = progress
        self._task = None if progress is None else progress.add_task("", total=None)
        self._began_ns = clock.now_ns()

    @property
    def seconds(self) -> float:
        """Time since construction."""
        return (self._clock.now_ns() - self._began_ns) / NS_PER_S

    def begin(self, name: str, *, done: int = 0, wanted: int | None = None) -> None:
        """Show that phase `name` starts, and that `done` of `wanted` units of work are done."""
        if self._progress is None or self._task is None:
            self._console.print(f"{self.seconds:4.0f} s  {name}", markup=False, highlight=False)
        else:
            self._progress.update(self._task, description=name, completed=done, total=wanted)

    def advance(self, name: str, *, done: float, wanted: float) -> None:
        """Update the live line, if there is one."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, description=name, completed=done, total=wanted)


@contextmanager
def phases(console: Console, clock: Clock) -> Iterator[Phases]:
    """Show phases until the `with` block ends; other output appears above the live line."""
    if read_environment().is_ci or not console.is_terminal:
        yield Phases(console, clock, None)
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        yield Phases(console, clock, progress)
