"""The cores and the priority of a program of the circle, for programs that load no torch too."""

import argparse
import os
from collections.abc import Set as AbstractSet

from rose.errors import InvalidArgument


def cores_of(text: str) -> frozenset[int]:
    """Return the cores that an option names, as in `0,2`.

    Raises:
        argparse.ArgumentTypeError: it names none.
    """
    try:
        cores = frozenset(int(core) for core in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"'{text}' is no list of cores such as 0,2") from error
    if min(cores) < 0:
        raise argparse.ArgumentTypeError(f"{min(cores)} is less than 0")
    return cores


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
