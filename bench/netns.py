"""A link with a rate: two network namespaces of this machine, and a shaped wire between them.

Its addresses are in 127/8, which both namespaces route over the wire. So a server that may listen
without TLS only on loopback can be at one end.
"""

import ctypes
import itertools
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rose.errors import Unavailable

_TOOLS: Final = ("ip", "tc")
_FOLDER: Final = Path("/var/run/netns")  # where `ip netns` stores the names of namespaces
_NUMBERS: Final = itertools.count()  # numbers of this process's links
_COMMAND_S: Final = 60.0
_LISTEN: Final = "0A"  # a state in /proc/net/tcp
_CLONE_NEWNET: Final = 0x40000000
_NEAR: Final = "127.77.0.1"
_FAR: Final = "127.77.0.2"
# Burst of the token bucket: a few of the kernel's largest packets, or one tick at full rate,
# whichever is larger. With less the rate would not be reached.
_BURST_BYTES_MIN: Final = 256 << 10
_BURST_S: Final = 0.002
# Longest time of a packet in the queue before it is dropped.
_QUEUE_MS: Final = 50


@dataclass(frozen=True, slots=True)
class End:
    """One end of a link.

    Args:
        namespace: name of its network namespace.
        device: its network device, an end of the wire.
        address: its IPv4 address, in 127/8.
    """

    namespace: str
    device: str
    address: str

    def sent_bytes(self) -> int:
        """Return the bytes that have left this end, headers included, by the kernel's counter."""
        shown = _do("ip", "-n", self.namespace, "-s", "-j", "link", "show", self.device)
        return int(json.loads(shown)[0]["stats64"]["tx"]["bytes"])

    def listening_ports(self) -> tuple[int, ...]:
        """Return the listening TCP ports in this namespace, ascending."""
        # Of both families: some servers accept IPv4 at an IPv6 socket.
        shown = _do(*self.command("cat", "/proc/net/tcp", "/proc/net/tcp6"))
        rows = (line.split() for line in shown.splitlines())
        places = (row[1] for row in rows if row[3] == _LISTEN)
        return tuple(sorted({int(place.rpartition(":")[2], 16) for place in places}))

    def command(self, *arguments: str) -> list[str]:
        """Return a command line that runs a program at this end."""
        return ["ip", "netns", "exec", self.namespace, *arguments]


@dataclass(frozen=True, slots=True)
class Link:
    """Two ends, each limited to the rate."""

    near: End
    far: End


@contextmanager
def shaped_link(bits_per_s: float) -> Iterator[Link]:
    """Make a link, and remove it at the end of the body.

    The caller ends the processes in its namespaces.

    Args:
        bits_per_s: rate of each direction, headers included; limited by `tc tbf`.

    Raises:
        Unavailable: this user or this machine cannot make one; the message has the reason.
    """
    check_able()
    number = f"{os.getpid()}-{next(_NUMBERS)}"
    near = End(f"rose-{number}-near", "near", _NEAR)
    far = End(f"rose-{number}-far", "far", _FAR)
    with ExitStack() as undo:
        for end in (near, far):
            _do("ip", "netns", "add", end.namespace)
            # The devices are removed with their namespaces.
            undo.callback(_do, "ip", "netns", "del", end.namespace)
        wire = ("type", "veth", "peer", "name", far.device, "netns", far.namespace)
        _do("ip", "link", "add", near.device, "netns", near.namespace, *wire)
        for end in (near, far):
            _raise(end)
            _shape(end, bits_per_s)
        yield Link(near, far)


@contextmanager
def inside(namespace: str) -> Iterator[None]:
    """Make this thread, and threads that it starts, create their sockets in a namespace."""
    with ExitStack() as undo:
        own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        undo.callback(os.close, own)
        other = os.open(_FOLDER / namespace, os.O_RDONLY)
        undo.callback(os.close, other)
        _enter(other)
        try:
            yield
        finally:
            _enter(own)


def enter(namespace: str) -> None:
    """Make this thread, and threads that it starts, create their sockets there from now on."""
    other = os.open(_FOLDER / namespace, os.O_RDONLY)
    try:
        _enter(other)
    finally:
        os.close(other)


def _enter(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)  # os.setns needs Python 3.12
    if libc.setns(descriptor, _CLONE_NEWNET) != 0:
        raise Unavailable(f"a namespace cannot be entered: {os.strerror(ctypes.get_errno())}")


def check_able() -> None:
    """Check whether links can be made here.

    Raises:
        Unavailable: they cannot; the message has the reason.
    """
    if os.geteuid() != 0:
        raise Unavailable("only root may make network namespaces")
    if missing := [tool for tool in _TOOLS if shutil.which(tool) is None]:
        raise Unavailable(f"a link needs {' and '.join(missing)}, of the package iproute2")


def _raise(end: End) -> None:
    """Bring one end up, and route all of 127/8 but 127.0.0.1 over the wire."""
    at = ("ip", "-n", end.namespace)
    _do(*at, "link", "set", "lo", "up")
    _do(*at, "addr", "del", "127.0.0.1/8", "dev", "lo")
    _do(*at, "addr", "add", "127.0.0.1/32", "dev", "lo")
    _do(*at, "addr", "add", f"{end.address}/30", "dev", end.device)
    for which in ("all", end.device):
        setting = f"net.ipv4.conf.{which}.route_localnet=1"
        _do(*end.command("sysctl", "-qw", setting))
    _do(*at, "link", "set", end.device, "up")


def _shape(end: End, bits_per_s: float) -> None:
    burst = max(_BURST_BYTES_MIN, int(bits_per_s / 8 * _BURST_S))
    rate = ("rate", f"{int(bits_per_s)}bit", "burst", f"{burst}b", "latency", f"{_QUEUE_MS}ms")
    _do("tc", "-n", end.namespace, "qdisc", "add", "dev", end.device, "root", "tbf", *rate)


def _do(*command: str) -> str:
    """Run a command and return its output.

    Raises:
        Unavailable: it failed.
    """
    done: Any = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=_COMMAND_S
    )
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise Unavailable(f"{' '.join(command[:4])} failed: {said[0] if said else done.returncode}")
    return str(done.stdout)


def leftovers() -> Sequence[str]:
    """Return this process's namespaces that still exist."""
    prefix = f"rose-{os.getpid()}-"
    return [line.split()[0] for line in _do("ip", "netns", "list").splitlines() if prefix in line]
