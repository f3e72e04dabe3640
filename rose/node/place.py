"""Where a program of the circle runs on a machine that serves traffic."""

from collections.abc import Set as AbstractSet

from rose.engines.torch import run_on_cores
from rose.node.cores import take_cores, yield_to_others


def take_place(cores: AbstractSet[int], *, is_background: bool) -> None:
    """Put this process where it was told to be; call it before any thread is started.

    Args:
        cores: to run on, with as many threads in torch; empty leaves both as they are.
        is_background: run in time that nobody else wants.

    Raises:
        InvalidArgument: this process may not use these cores.
    """
    take_cores(cores)
    if cores:
        run_on_cores(len(cores))
    if is_background:
        yield_to_others()
