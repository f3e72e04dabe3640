"""A progress bar on stderr, for people: nothing is drawn where nobody watches."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from rose.checkpoints.contents import Advance


@contextmanager
def progress(what: str, total_bytes: int) -> Iterator[Advance]:
    """Give what is to be told of each part that is done.

    Args:
        what: is being done.
        total_bytes: of all parts.
    """
    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with bar:
        task = bar.add_task(what, total=total_bytes)
        yield lambda done_bytes: bar.advance(task, done_bytes)
