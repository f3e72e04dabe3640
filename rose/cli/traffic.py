"""The trace that a command runs on: a file's, or one that is generated."""

from collections.abc import Callable
from typing import Any

import click

from rose.errors import InvalidArgument
from rose.traces import PROFILES, Trace, generate, read_trace


def traffic_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command `--trace` and `--profile`, which `load_trace` takes."""
    profile = click.option(
        "--profile",
        type=click.Choice(list(PROFILES)),
        help="Traffic that is generated without a trace; chat by default.",
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
        path: of a file, or None.
        profile: of what is generated without one; chat if None.
        generated_s: how long that lasts, at the rate of its profile.
        length_scale: factor on all lengths.
        prompt_max: longest prompt, in tokens; None for any.
        output_max: longest output, in tokens; None for any.
        seed: of what is generated, or drawn where a file leaves it open.

    Raises:
        InvalidArgument: both are given, or the file cannot be read.
    """
    if path is not None and profile is not None:
        raise InvalidArgument("--trace and --profile both say which traffic there is; give one")
    trace = (
        generate(profile or "chat", duration_s=generated_s, seed=seed)
        if path is None
        else read_trace(path, seed=seed)
    )
    return trace.with_lengths(scale=length_scale, prompt_max=prompt_max, output_max=output_max)
