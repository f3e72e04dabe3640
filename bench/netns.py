"""A link with a rate, a delay and losses: a shaped wire between two network namespaces.

Its IPv4 addresses are in 127/8, which both namespaces route over the wire. So a server that may
listen without TLS only on loopback can be at one end. `tc tbf` limits the rate. The wire is a veth
pair; with a delay or losses it is a program between two TUN devices, `long_wire.cpp`.
"""

import ctypes
import fcntl
import itertools
import json
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.programs import built
from rose.errors import Unavailable, check

_TOOLS: Final = ("ip", "tc")
_FOLDER: Final = Path("/var/run/netns")  # where `ip netns` stores the names of namespaces
_NUMBERS: Final = itertools.count()  # numbers of this process's links
_COMMAND_S: Final = 60.0
_CLONE_NEWNET: Final = 0x40000000
_NEAR: Final = "127.77.0.1"
_FAR: Final = "127.77.0.2"
_NEAR6: Final = "fd77::1"
_FAR6: Final = "fd77::2"
# Burst of the token bucket: a few of the kernel's largest packets, or one tick at full rate,
# whichever is larger. With less the rate would not be reached.
_BURST_BYTES_MIN: Final = 256 << 10
_BURST_S: Final = 0.002
# Longest time of a packet in the queue before it is dropped.
_QUEUE_MS: Final = 50
# Constants of linux/if_tun.h. Without losses, bursts of a connection cross the wire in one packet.
_TUN: Final = Path("/dev/net/tun")
_TUNSETIFF: Final = 0x400454CA
_TUNSETOFFLOAD: Final = 0x400454D0
_IFF_TUN_NO_PI_VNET_HDR: Final = 0x0001 | 0x1000 | 0x4000
_TUN_F_CSUM_TSO4_TSO6: Final = 0x01 | 0x02 | 0x04
# Packets between the kernel and the program, for moments at which the program does not run.
_TUN_QUEUE_PACKETS: Final = 10_000


@dataclass(frozen=True, slots=True)
class End:
    """One end of a link.

    Args:
        namespace: name of its network namespace.
        device: its network device, an end of the wire.
        address: its IPv4 address, in 127/8.
        address6: its IPv6 address, which is not on loopback.
    """

    namespace: str
    device: str
    address: str
    address6: str

    def sent_bytes(self) -> int:
        """Return the bytes that have left this end, headers included, by the kernel's counter."""
        shown = _do("ip", "-n", self.namespace, "-s", "-j", "link", "show", self.device)
        return int(json.loads(shown)[0]["stats64"]["tx"]["bytes"])

    def set(self, setting: str, value: object) -> None:
        """Change a setting of the kernel for this end.

        Raises:
            Unavailable: the kernel does not have the setting or the value.
        """
        _do(*self.command("sysctl", "-qw", f"{setting}={value}"))

    def command(self, *arguments: str) -> list[str]:
        """Return a command line that runs a program at this end."""
        return ["ip", "netns", "exec", self.namespace, *arguments]


@dataclass(frozen=True, slots=True)
class Link:
    """Two ends, each limited to the rate."""

    near: End
    far: End


@contextmanager
def shaped_link(bits_per_s: float, *, delay_ms: float = 0.0, loss: float = 0.0) -> Iterator[Link]:
    """Make a link, and remove it at the end of the body.

    The caller ends the processes in its namespaces.

    Args:
        bits_per_s: rate of each direction, headers included.
        delay_ms: delay of each direction.
        loss: share of the packets that each direction drops, from 0 to 1.

    Raises:
        Unavailable: this user or this machine cannot make one; the message has the reason.
    """
    check_able()
    number = f"{os.getpid()}-{next(_NUMBERS)}"
    near = End(f"rose-{number}-near", "near", _NEAR, _NEAR6)
    far = End(f"rose-{number}-far", "far", _FAR, _FAR6)
    with ExitStack() as undo:
        for end in (near, far):
            _do("ip", "netns", "add", end.namespace)
            # The devices are removed with their namespaces.
            undo.callback(_do, "ip", "netns", "del", end.namespace)
        if delay_ms or loss:
            undo.enter_context(_long_wire(near, far, delay_ms, loss))
        else:
            wire = ("type", "veth", "peer", "name", far.device, "netns", far.namespace)
            _do("ip", "link", "add", near.device, "netns", near.namespace, *wire)
        for end in (near, far):
            _raise(end)
            _shape(end, bits_per_s)
        yield Link(near, far)


@contextmanager
def _long_wire(near: End, far: End, delay_ms: float, loss: float) -> Iterator[None]:
    """Make the devices of both ends, and carry packets between them during the body."""
    with ExitStack() as undo:
        devices = [_tun(end, is_lossy=loss > 0) for end in (near, far)]
        for device in devices:
            undo.callback(os.close, device)
        numbers = (*devices, round(1e3 * delay_ms), round(1e6 * loss))
        wire = subprocess.Popen(
            [str(built("long_wire")), *map(str, numbers)],
            pass_fds=devices,
            stdin=subprocess.PIPE,  # the program ends with this process
            stdout=subprocess.PIPE,
        )
        undo.callback(wire.communicate, timeout=_COMMAND_S)
        undo.callback(wire.kill)
        check(wire.stdout is not None and wire.stdout.readline() == b"ready\n", "no wire")
        yield


def _tun(end: End, *, is_lossy: bool) -> int:
    """Make the device of an end; return its descriptor."""
    with inside(end.namespace):
        device = os.open(_TUN, os.O_RDWR)
        wanted = struct.pack("16sH22x", end.device.encode(), _IFF_TUN_NO_PI_VNET_HDR)
        fcntl.ioctl(device, _TUNSETIFF, wanted)
        fcntl.ioctl(device, _TUNSETOFFLOAD, 0 if is_lossy else _TUN_F_CSUM_TSO4_TSO6)
    _do(
        *("ip", "-n", end.namespace, "link", "set", end.device),
        "txqueuelen",
        str(_TUN_QUEUE_PACKETS),
    )
    return device


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
    if not _TUN.exists():
        raise Unavailable(f"a link with a delay needs the device {_TUN}")


def _raise(end: End) -> None:
    """Bring one end up, and route all of 127/8 but 127.0.0.1 over the wire."""
    at = ("ip", "-n", end.namespace)
    _do(*at, "link", "set", "lo", "up")
    _do(*at, "addr", "del", "127.0.0.1/8", "dev", "lo")
    _do(*at, "addr", "add", "127.0.0.1/32", "dev", "lo")
    _do(*at, "addr", "add", f"{end.address}/30", "dev", end.device)
    _do(*at, "addr", "add", f"{end.address6}/64", "dev", end.device, "nodad")
    for which in ("all", end.device):
        end.set(f"net.ipv4.conf.{which}.route_localnet", 1)
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
