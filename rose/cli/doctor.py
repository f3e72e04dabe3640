"""`rose doctor`: which parts of rose are active on this machine, and why."""

import fcntl
import os
import platform
import sys
from dataclasses import dataclass
from enum import Enum
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rose import __version__

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet


class State(Enum):
    """The verdict on a part; the value is the colour of the verdict in the table."""

    ACTIVE = "green"
    ABSENT = "yellow"
    BROKEN = "red"


@dataclass(frozen=True, slots=True)
class Finding:
    """One row of the report.

    Args:
        part: name of a part of rose, or of a package, tool or device that rose uses.
        state: `ABSENT` for a missing optional part, `BROKEN` for a required one.
        why: evidence, and a remedy if something is missing.
    """

    part: str
    state: State
    why: str


_EXIT_BROKEN: Final = 1

_DISTRIBUTION: Final = "rose-rl"
# Python's fcntl lacks this constant of Linux 5.1. The seal forbids new writable mappings, and keeps
# existing ones.
_F_SEAL_FUTURE_WRITE: Final = 0x10


@click.command()
@click.pass_context
def doctor(ctx: click.Context) -> None:
    """Report which parts of rose are active here, and why.

    The exit status is 1 when a necessary part is broken.
    """
    findings = examine()
    table = Table("part", "state", "why")
    for finding in findings:
        state = Text(finding.state.name.lower(), style=finding.state.value)
        table.add_row(finding.part, state, Text(finding.why))
    Console(highlight=False).print(table)
    if any(finding.state is State.BROKEN for finding in findings):
        ctx.exit(_EXIT_BROKEN)


def examine() -> tuple[Finding, ...]:
    """Examine this process and machine, GPUs included, without importing torch or an engine."""
    core = _core()
    return (
        Finding("python", State.ACTIVE, f"{platform.python_version()} at {sys.executable}"),
        Finding("rose", State.ACTIVE, __version__),
        core,
        _cores(),
        _memory(),
        _package("torch"),
        _package("transformers"),
        *_gpus(core),
    )


def _core() -> Finding:
    try:
        core = import_module("rose._core")
    except ImportError as error:
        return Finding(
            "C++ core",
            State.BROKEN,
            f"cannot be loaded ({error}); install rose again, with a C++20 compiler",
        )
    compiler = getattr(core, "__compiler__", None)
    isas = core.isa_names()
    facts = [f"built with {compiler}" if compiler else "loaded", platform.machine(), isas[-1]]
    return Finding("C++ core", State.ACTIVE, ", ".join(facts))


def _gpus(core: Finding) -> tuple[Finding, ...]:
    if core.state is not State.ACTIVE:
        return ()
    # Imported here, because it needs a working core.
    module = import_module("rose.cli.doctor_gpu")
    return tuple(module.gpu_findings())


def _cores() -> Finding:
    usable, present = len(os.sched_getaffinity(0)), os.cpu_count()
    return Finding("cpu", State.ACTIVE, f"{usable} of {present} cores may be used by this process")


def _memory() -> Finding:
    """Try to create a sealed memfd, which the ledger needs."""
    what = "KV pool on a sealed memfd"
    try:
        descriptor = os.memfd_create("rose-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _F_SEAL_FUTURE_WRITE)
        finally:
            os.close(descriptor)
    except (OSError, AttributeError) as error:
        why = f"{what} does not work ({error}); it needs Linux 5.1 or later"
        return Finding("memory", State.BROKEN, why)
    return Finding("memory", State.ACTIVE, what)


def _package(name: str) -> Finding:
    if find_spec(name) is None:
        return Finding(name, State.ABSENT, f"not installed; install {_DISTRIBUTION}[transformers]")
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Finding(name, State.ABSENT, "found, but without a version; install it anew")
    supported = _supported(name)
    if supported is not None and not supported.contains(version, prereleases=True):
        why = f"{version} is not supported, rose needs {supported}"
        return Finding(name, State.ABSENT, f"{why}; install {_DISTRIBUTION}[transformers]")
    return Finding(name, State.ACTIVE, version)


def _supported(name: str) -> "SpecifierSet | None":
    """Return the versions of a package that rose supports; None without `packaging`."""
    if find_spec("packaging") is None:
        return None
    # An optional package, which is installed with transformers.
    from packaging.requirements import Requirement  # noqa: PLC0415

    wanted = map(Requirement, metadata.requires(_DISTRIBUTION) or ())
    return next((one.specifier for one in wanted if one.name == name), None)
