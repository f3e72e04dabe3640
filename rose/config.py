"""The only module that reads environment variables."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Final

# Kinds of plug-ins that vLLM loads when `VLLM_PLUGINS` is unset.
_KINDS_OF_PLUGINS: Final = ("general", "io_processor", "platform", "stat_logger")


@dataclass(frozen=True, slots=True)
class Environment:
    """The environment variables that rose reads; None stands for an unset variable.

    Args:
        is_ci: whether `CI` is set, which disables live progress bars.
        isa: `ROSE_ISA`, the best instruction set that `rose.transfer` may use.
        cuda_max_connections: `CUDA_DEVICE_MAX_CONNECTIONS`; None if unset or not a number.
        is_launch_blocking: whether `CUDA_LAUNCH_BLOCKING` makes each launch wait until its kernel
            has ended.
        vllm_wheel: `ROSE_VLLM_WHEEL`, path of the vLLM wheel that benchmarks compare rose with;
            with the value "download" the benchmarks download the wheel.
        token: `ROSE_TOKEN`, the shared secret of peers.
        manifest_key: `ROSE_MANIFEST_KEY`, the signing key of manifests.
        runtime_folder: `XDG_RUNTIME_DIR`, the folder for the user's sockets.
        home: `HOME`, the user's home folder.
    """

    is_ci: bool
    isa: str | None = None
    cuda_max_connections: int | None = None
    is_launch_blocking: bool = False
    vllm_wheel: str | None = None
    token: str | None = field(default=None, repr=False)
    manifest_key: str | None = field(default=None, repr=False)
    runtime_folder: str | None = None
    home: str = "/"


def read_environment() -> Environment:
    """Read the variables. Call this once and pass the result on."""
    connections = os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS", "")
    return Environment(
        is_ci=os.environ.get("CI", "") not in ("", "0", "false"),
        isa=os.environ.get("ROSE_ISA") or None,
        cuda_max_connections=int(connections) if connections.isdecimal() else None,
        is_launch_blocking=os.environ.get("CUDA_LAUNCH_BLOCKING", "") not in ("", "0"),
        vllm_wheel=os.environ.get("ROSE_VLLM_WHEEL") or None,
        token=os.environ.get("ROSE_TOKEN") or None,
        manifest_key=os.environ.get("ROSE_MANIFEST_KEY") or None,
        runtime_folder=os.environ.get("XDG_RUNTIME_DIR") or None,
        home=os.environ.get("HOME") or "/",
    )


def environment_with(token: str | None) -> dict[str, str]:
    """Return the environment of a child process, including its token.

    The token is not passed on the command line, because other users can read command lines.

    Args:
        token: `ROSE_TOKEN` of the child; None: the child inherits this process's token, if any.
    """
    return dict(os.environ) if token is None else {**os.environ, "ROSE_TOKEN": token}


def environment_of_program(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of an engine that this process starts.

    The bearer token of this process's clients is not passed on.

    Args:
        variables: further variables of the program.
    """
    own = {name: value for name, value in os.environ.items() if name != "ROSE_TOKEN"}
    return {**own, "PYTHONUNBUFFERED": "1", **variables}


def environment_of_vllm(plugin: str) -> dict[str, str]:
    """Return the environment of a vLLM server that loads rose's plug-in.

    `VLLM_PLUGINS` lists all plug-ins that may load. Without this variable vLLM loads every plug-in
    except those that add HTTP routes, so the list names all other installed plug-ins too. The
    server runs on the CPU and shares the cores with a second server, so its threads are bound to
    cores only if the user asks for it.

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

    Call it before importing gRPC, which otherwise prints a line for every failed TLS handshake.
    rose reports failures itself.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
