"""Shared parts of commands: files, folders, interrupts, progress, traffic options."""

import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from rose.errors import InvalidArgument
from rose.traces import PROFILES, Trace, generate, read_trace
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


def try_folder(folder: Path) -> None:
    """Test before a long run that the folder of `--out` can be written; leave nothing behind.

    Raises:
        InvalidArgument: the folder cannot be written; the message says why.
    """
    if folder.is_file():
        raise InvalidArgument(f"--out {folder} is a file: name a folder")
    missing: list[Path] = []
    try:
        missing += [one for one in (folder, *folder.parents) if not one.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InvalidArgument(
            f"cannot write to --out {folder}: {error.strerror or error}; "
            f"name a folder that can be written"
        ) from None
    finally:
        for one in missing:
            with suppress(OSError):
                one.rmdir()


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


def traffic_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options `--trace` and `--profile` of `load_trace` to a command."""
    profile = click.option(
        "--profile",
        type=click.Choice(list(PROFILES)),
        help="Traffic to generate if there is no --trace; chat by default.",
    )
    trace = click.option(
        "--trace",
        "trace_path",
        metavar="PATH",
        help="Azure, BurstGPT, Mooncake or rose trace, plain or .gz.",
    )
    return trace(profile(command))


def load_trace(
    path: str | None,
    profile: str | None,
    *,
    generated_s: float,
    length_scale: float,
    prompt_max: int | None,
    output_max: int | None,
    seed: int,
) -> Trace:
    """Read or generate a trace.

    Args:
        path: trace file; None generates a trace.
        profile: profile of a generated trace; None for chat.
        generated_s: duration of a generated trace, at the rate of its profile.
        length_scale: factor on all lengths.
        prompt_max: longest prompt, in tokens; None for no limit.
        output_max: longest output, in tokens; None for no limit.
        seed: seed of a generated trace, and of values that a file lacks.

    Raises:
        InvalidArgument: path and profile are both given, or the file cannot be read.
    """
    if path is not None and profile is not None:
        raise InvalidArgument("--trace and --profile both define the traffic; give only one")
    trace = (
        generate(profile or "chat", duration_s=generated_s, seed=seed)
        if path is None
        else read_trace(path, seed=seed)
    )
    return trace.with_lengths(scale=length_scale, prompt_max=prompt_max, output_max=output_max)
