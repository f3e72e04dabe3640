"""Shared parts of commands: files, interrupts, progress."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from rose.errors import InvalidArgument
from rose.whole_file import read_input, write_whole


def read_named(path: Path, bytes_max: int) -> bytes:
    """Return the content of a user's file.

    Raises:
        InvalidArgument: the file cannot be read, or has more than `bytes_max` bytes.
    """
    try:
        return read_input(path, bytes_max=bytes_max)
    except OSError as error:
        raise InvalidArgument(f"cannot read {path}: {error.strerror or error}") from None


def write_output(path: Path, content: bytes, *, what: str) -> None:
    """Write a file atomically; links are followed.

    Args:
        path: file to write; devices, pipes and standard streams are written directly.
        content: content of the file.
        what: name of the content in the error message.

    Raises:
        InvalidArgument: the file cannot be written.
    """
    try:
        write_whole(path, content)
    except OSError as error:
        raise InvalidArgument(
            f"cannot write {what} to {path}: {error.strerror or error}; "
            f"name a file in a directory that can be written"
        ) from None


@contextmanager
def ends_interrupt() -> Iterator[None]:
    """Raise `KeyboardInterrupt` in the main thread on SIGTERM, as on SIGINT."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def progress(what: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar; yield a function that takes the bytes of each finished part.

    Args:
        what: description of the work.
        total_bytes: size of all parts.
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
