"""The one room that reads the environment."""

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Environment:
    """What rose takes from the process environment.

    Args:
        is_ci: `CI` is set: no progress bars that redraw.
        cuda_max_connections: `CUDA_DEVICE_MAX_CONNECTIONS`, None when it is not set to a number.
    """

    is_ci: bool
    cuda_max_connections: int | None


def read_environment() -> Environment:
    """Read the variables once; callers pass the value on."""
    connections = os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS", "")
    return Environment(
        is_ci=os.environ.get("CI", "") not in ("", "0", "false"),
        cuda_max_connections=int(connections) if connections.isdecimal() else None,
    )
