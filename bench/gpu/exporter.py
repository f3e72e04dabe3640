"""Another process that creates a pool on the device, exports it, and waits to be killed."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from bench.gpu.children import ROOT, environment, python
from rose.errors import check

LIMIT_S: Final = 30.0
FDS_MAX: Final = 253  # descriptors in one message on a socket


class Exporter:
    """The other process.

    Args:
        child: handle of the process.
        export: its pool, to attach to here.
    """

    def __init__(self, child: "subprocess.Popen[bytes]", export: Any) -> None:
        self._child = child
        self.export = export

    def kill(self) -> None:
        """Kill it like a crash; return when its process and context are gone."""
        self._child.kill()
        check(self._child.wait(LIMIT_S) == -signal.SIGKILL, "the exporter had already ended")


def _receive(line: socket.socket, slab_bytes: int, slabs: int) -> Any:
    from rose._core import PoolExport

    text, fds, _, _ = socket.recv_fds(line, 1 << 16, FDS_MAX)
    try:
        return PoolExport(
            fds,
            sizes=[int(one) for one in text.split()],
            slab_bytes=slab_bytes,
            slab_count=slabs,
            header_slabs=0,
            is_on_host=False,
        )
    finally:
        for fd in fds:
            os.close(fd)


@contextmanager
def exporter(*, slab_bytes: int, slabs: int) -> Iterator[Exporter]:
    """Yield a process that holds a pool until the block ends."""
    here, there = socket.socketpair()
    with here, there:
        shape = map(str, (there.fileno(), slab_bytes, slabs))
        child = subprocess.Popen(
            python("-m", "bench.gpu.exporter", *shape),
            pass_fds=[there.fileno()],
            cwd=ROOT,
            env=environment(),
        )
        try:
            there.close()
            here.settimeout(LIMIT_S)
            yield Exporter(child, _receive(here, slab_bytes, slabs))
        finally:
            child.kill()
            child.wait()


def main(number: int, slab_bytes: int, slabs: int) -> None:
    """Create the pool, export it, and hold it until the other side is gone."""
    from rose._core import Arbiter, CudaDevice

    with socket.socket(fileno=number) as line:
        arbiter = Arbiter.create(
            slab_bytes=slab_bytes, slab_count=slabs, header_slabs=0, device=CudaDevice.open(0)
        )
        export = arbiter.share_pool()
        socket.send_fds(line, [" ".join(map(str, export.sizes)).encode()], export.fds)
        line.recv(1)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
