"""The only module that reads environment variables."""

import os
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Final

# Kinds that vLLM loads unless a list says otherwise.
_KINDS_OF_PLUGINS: Final = ("general", "io_processor", "platform", "stat_logger")


@dataclass(frozen=True, slots=True)
class Environment:
    """The variables that rose reads; an unset one is None.

    Args:
        is_ci: whether `CI` is set, which disables live progress bars.
        isa: `ROSE_ISA`, the best instruction set that `rose.transfer` may use.
        cuda_max_connections: `CUDA_DEVICE_MAX_CONNECTIONS`; None also if it is not a number.
        is_launch_blocking: whether `CUDA_LAUNCH_BLOCKING` makes each launch wait for its end.
        vllm_wheel: `ROSE_VLLM_WHEEL`, the vLLM wheel that rose is compared with, or its source.
        token: `ROSE_TOKEN`, the shared secret of peers.
        manifest_key: `ROSE_MANIFEST_KEY`, the signing key of manifests.
    """

    is_ci: bool
    isa: str | None = None
    cuda_max_connections: int | None = None
    is_launch_blocking: bool = False
    vllm_wheel: str | None = None
    token: str | None = field(default=None, repr=False)
    manifest_key: str | None = field(default=None, repr=False)


def read_environment() -> Environment:
    """Read the variables; call it once and pass the value on."""
    connections = os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS", "")
    return Environment(
        is_ci=os.environ.get("CI", "") not in ("", "0", "false"),
        isa=os.environ.get("ROSE_ISA") or None,
        cuda_max_connections=int(connections) if connections.isdecimal() else None,
        is_launch_blocking=os.environ.get("CUDA_LAUNCH_BLOCKING", "") not in ("", "0"),
        vllm_wheel=os.environ.get("ROSE_VLLM_WHEEL") or None,
        token=os.environ.get("ROSE_TOKEN") or None,
        manifest_key=os.environ.get("ROSE_MANIFEST_KEY") or None,
    )


def environment_with(token: str | None) -> dict[str, str]:
    """Return the environment of a child process, where other users cannot read its token.

    Args:
        token: `ROSE_TOKEN` of the child; None inherits this process's, if any.
    """
    return dict(os.environ) if token is None else {**os.environ, "ROSE_TOKEN": token}


def environment_of_vllm(plugin: str) -> dict[str, str]:
    """Return the environment of a vLLM server that loads rose's plug-in.

    `VLLM_PLUGINS` lists all plug-ins that may load. Unset it allows every one, except those that
    add HTTP routes, so the others installed here are named too. rose drives CPUs, and two servers
    share them, so unless the user says otherwise none is bound to cores.

    Args:
        plugin: name of rose's entry point.
    """
    named = os.environ.get("VLLM_PLUGINS")
    names = named.split(",") if named is not None else _plugins_that_need_no_name()
    allowed = dict.fromkeys([*filter(None, names), plugin])
    ours = {"VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    return {**ours, **os.environ, "VLLM_PLUGINS": ",".join(allowed)}


def _plugins_that_need_no_name() -> list[str]:
    groups = (f"vllm.{kind}_plugins" for kind in _KINDS_OF_PLUGINS)
    return [one.name for group in groups for one in entry_points(group=group)]


def quiet_grpc() -> None:
    """Silence gRPC's own messages on stderr, unless the user set GRPC_VERBOSITY.

    Call it before importing gRPC, which would print a line for every failed handshake of strangers;
    rose reports failures itself.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
