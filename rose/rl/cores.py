"""The cores and the priority of a program of the circle, for programs that load no torch too."""

import os
from collections.abc import Set as AbstractSet

from rose.errors import InvalidArgument


def take_cores(cores: AbstractSet[int]) -> None:
    """Run on these cores only; empty leaves it as it is. Call it before any thread is started.

    Raises:
        InvalidArgument: this process may not use these cores.
    """
    if not cores:
        return
    try:
        os.sched_setaffinity(0, cores)
    except OSError as error:
        raise InvalidArgument(f"cores {sorted(cores)}: {error.strerror}") from error


def yield_to_others() -> None:
    """Run in time that nobody else wants.

    Niceness would not do: what serves shares an interpreter lock with what runs on these cores, and
    a thread that has to wait for a core while it holds that lock holds serving up.
    """
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
