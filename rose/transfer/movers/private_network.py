"""A network that only processes of this user can enter: what movers speak in the clear stays there.

It is a namespace of the kernel with a loopback of its own. The first process makes it, others join
by its number; the kernel lets in whoever runs as the same user, or is root. Whoever enters has to
be single-threaded, and never comes back: it is for porters, which are started for that.
"""

import ctypes
import fcntl
import os
import socket
import struct
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from rose.errors import Unavailable

# From <linux/sched.h>, <linux/sockios.h> and <linux/if.h>.
_NEW_USER: Final = 0x1000_0000
_NEW_NET: Final = 0x4000_0000
_GET_FLAGS: Final = 0x8913
_SET_FLAGS: Final = 0x8914
_UP: Final = 1
_LOOPBACK: Final = b"lo"
# name of the interface, flags, and the rest of the union
_REQUEST: Final = struct.Struct("16sH22x")


def make_network() -> int:
    """Enter a new network, whose loopback is up; return its inode.

    Raises:
        Unavailable: the kernel does not let this user make one.
    """
    _call("unshare", _NEW_USER | _NEW_NET)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            fcntl.ioctl(sock, _SET_FLAGS, _REQUEST.pack(_LOOPBACK, _flags(sock, _LOOPBACK) | _UP))
    except OSError as error:  # there are kernels that make one in which nobody may do anything
        raise Unavailable(f"a mover needs a network of its own: {error.strerror}") from error
    return Path("/proc/self/ns/net").stat().st_ino


def join_network(pid: int, inode: int) -> int:
    """Enter the network of another process; return its inode.

    Raises:
        Unavailable: there is no such process on this machine, its network is another one by now, or
            it is another user's.
    """
    with ExitStack() as stack:
        places = []
        for kind in ("user", "net"):
            try:
                places.append(os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC))
            except OSError as error:
                raise Unavailable(
                    f"the network of process {pid} cannot be entered: {error.strerror}; both sides "
                    "of a mover are on one machine, and run as one user"
                ) from error
            stack.callback(os.close, places[-1])
        if os.fstat(places[1]).st_ino != inode:
            raise Unavailable(f"process {pid} of this machine is not the one that offers chunks")
        for place, kind_bit in zip(places, (_NEW_USER, _NEW_NET), strict=True):
            _call("setns", place, kind_bit)
    return inode


def check_is_private() -> None:
    """Make sure that nothing but loopback is up in the network of this process.

    Who offers chunks names a process, and could name one whose network others can reach.

    Raises:
        Unavailable: something else is up.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        names = [os.fsencode(name) for _, name in socket.if_nameindex()]
        up = [name for name in names if _flags(sock, name) & _UP]
    others = [os.fsdecode(name) for name in up if name != _LOOPBACK]
    if others:
        raise Unavailable(f"this network reaches others, by {', '.join(others)}: a mover may not")


def _flags(sock: socket.socket, name: bytes) -> int:
    """Return the flags of an interface."""
    return int(_REQUEST.unpack(fcntl.ioctl(sock, _GET_FLAGS, _REQUEST.pack(name, 0)))[1])


def _call(name: str, *arguments: int) -> None:
    """Call the kernel: Python has these two from 3.12 on."""
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        reason = os.strerror(ctypes.get_errno())
        raise Unavailable(
            f"a mover needs a network of its own, and there is none: {name}: {reason}"
        )
