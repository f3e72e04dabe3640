"""Options of commands that choose the traffic of serving."""

from collections.abc import Callable
from typing import Any

import click

from rose.errors import InvalidArgument
from rose_lab.traces import PROFILES, Trace, generate, read_trace


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
