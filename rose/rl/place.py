"""Where a program of the circle runs on a machine that serves traffic."""

import os
from collections.abc import Set as AbstractSet

from rose.engines.torch import run_on_cores
from rose.errors import InvalidArgument


def take_place(cores: AbstractSet[int], *, is_background: bool) -> None:
    """Put this process where it was told to be; call it before any thread is started.

    Args:
        cores: to run on, with as many threads in torch; empty leaves both as they are.
        is_background: run in time that nobody else wants. Niceness would not do: what serves shares
            an interpreter lock with what runs on these cores, and a thread that has to wait for a
            core while it holds that lock holds serving up.

    Raises:
        InvalidArgument: this process may not use these cores.
    """
    if cores:
        try:
            os.sched_setaffinity(0, cores)
        except OSError as error:
            raise InvalidArgument(f"cores {sorted(cores)}: {error.strerror}") from error
        run_on_cores(len(cores))
    if is_background:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
