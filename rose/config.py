"""The one room that reads the environment."""

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Environment:
    """What rose takes from the process environment.

    Args:
        is_ci: `CI` is set: no progress bars that redraw.
        isa: `ROSE_ISA`, the best instruction set that `rose.transfer` may use; None when it is not
            set.
    """

    is_ci: bool
    isa: str | None = None


def read_environment() -> Environment:
    """Read the variables once; callers pass the value on."""
    return Environment(
        is_ci=os.environ.get("CI", "") not in ("", "0", "false"),
        isa=os.environ.get("ROSE_ISA") or None,
    )
