"""The one room that reads the environment."""

import os
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Environment:
    """What rose takes from the process environment.

    Args:
        is_ci: `CI` is set: no progress bars that redraw.
        isa: `ROSE_ISA`, the best instruction set that `rose.transfer` may use; None when it is not
            set.
        cuda_max_connections: `CUDA_DEVICE_MAX_CONNECTIONS`, None when it is not set to a number.
        is_cuda_eager: `CUDA_MODULE_LOADING` says that kernels are loaded before their first launch.
        vllm_wheel: `ROSE_VLLM_WHEEL`, the wheel of the vLLM that rose is compared with, or how to
            come by it; None when it is not set.
        token: `ROSE_TOKEN`, what peers show each other; None when it is not set.
        manifest_key: `ROSE_MANIFEST_KEY`, what manifests are signed with; None when it is not set.
    """

    is_ci: bool
    isa: str | None = None
    cuda_max_connections: int | None = None
    is_cuda_eager: bool = False
    vllm_wheel: str | None = None
    token: str | None = field(default=None, repr=False)
    manifest_key: str | None = field(default=None, repr=False)


def read_environment() -> Environment:
    """Read the variables once; callers pass the value on."""
    connections = os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS", "")
    return Environment(
        is_ci=os.environ.get("CI", "") not in ("", "0", "false"),
        isa=os.environ.get("ROSE_ISA") or None,
        cuda_max_connections=int(connections) if connections.isdecimal() else None,
        is_cuda_eager=os.environ.get("CUDA_MODULE_LOADING", "").upper() == "EAGER",
        vllm_wheel=os.environ.get("ROSE_VLLM_WHEEL") or None,
        token=os.environ.get("ROSE_TOKEN") or None,
        manifest_key=os.environ.get("ROSE_MANIFEST_KEY") or None,
    )


def environment_with(token: str | None) -> dict[str, str]:
    """Return the environment of a program that is started; another user cannot read a token there.

    Args:
        token: `ROSE_TOKEN` of that program; None for that of this process, if it has one.
    """
    return dict(os.environ) if token is None else {**os.environ, "ROSE_TOKEN": token}


def quiet_grpc() -> None:
    """Let gRPC say nothing of its own on stderr, unless the user set what it says.

    To be called before it is imported: a program that repeats what fails in its own sentences does
    not want a line for each handshake of each stranger.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
