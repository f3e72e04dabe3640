"""A pool in two processes: one makes it, the other is handed its descriptors over a socket."""

import ctypes
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rose._core import Arbiter, CudaDevice, Pool, PoolExport
from rose.errors import InvalidArgument, OutOfMemory, RoseError
from tests.fake_driver import Fake, in_child

ROOT = Path(__file__).resolve().parents[2]
PAGE = 2 << 20
SLABS = 5
OBJECTS = 3

# Reads a byte of each slab, answers with one of its own, and says what it saw.
OTHER = f"""
import ctypes, socket, sys
from rose._core import CudaDevice, Pool, PoolExport
line = socket.socket(fileno=int(sys.argv[1]))
text, fds, _, _ = socket.recv_fds(line, 4096, 16)
slab_bytes, slab_count, header_slabs, is_on_host, *sizes = map(int, text.split())
export = PoolExport(fds, sizes=sizes, slab_bytes=slab_bytes, slab_count=slab_count,
                    header_slabs=header_slabs, is_on_host=bool(is_on_host))
pool = Pool.attach(export, device=None if is_on_host else CudaDevice.open(0))
seen = []
for slab in range({SLABS}):
    at = pool.pool_address + slab * slab_bytes
    seen += ctypes.string_at(at, 1)
    ctypes.memset(at + 1, 100 + slab, 1)
line.sendall(bytes(seen))
line.recv(1)
"""


@contextmanager
def other_process(export: PoolExport) -> Iterator[socket.socket]:
    """Run the other process until the block ends; it holds the pool meanwhile."""
    here, there = socket.socketpair()
    with here, there:
        here.settimeout(60)
        number = there.fileno()
        child = subprocess.Popen(
            [sys.executable, "-c", OTHER, str(number)], pass_fds=[number], cwd=ROOT
        )
        there.close()
        words = [export.slab_bytes, export.slab_count, export.header_slabs, int(export.is_on_host)]
        text = " ".join(map(str, words + export.sizes))
        socket.send_fds(here, [text.encode()], export.fds)
        try:
            yield here
            here.send(b".")
            assert child.wait(60) == 0
        finally:
            child.kill()
            child.wait()


def descriptors() -> list[str]:
    return sorted(one.name for one in Path("/proc/self/fd").iterdir())


def create(device: CudaDevice | None = None) -> Arbiter:
    return Arbiter.create(
        slab_bytes=PAGE,
        slab_count=SLABS - 1,
        header_slabs=1,
        object_bytes_max=2 * PAGE,
        device=device,
    )


def byte(address: int, value: int | None = None) -> int:
    if value is not None:
        ctypes.memset(address, value, 1)
    return ctypes.string_at(address, 1)[0]


def seen_by_both(device: CudaDevice | None) -> None:
    arbiter = create(device)
    for slab in range(SLABS):
        byte(arbiter.pool_address + slab * PAGE, slab + 1)
    export = arbiter.share_pool()
    assert len(export.fds) == len(export.sizes) == OBJECTS
    with other_process(export) as line:
        assert list(line.recv(SLABS)) == [1, 2, 3, 4, 5]
    for slab in range(SLABS):
        assert byte(arbiter.pool_address + slab * PAGE + 1) == 100 + slab


def test_two_processes_see_the_same_bytes() -> None:
    seen_by_both(None)


@in_child()
def test_two_processes_see_the_same_device_bytes(fake: Fake) -> None:
    seen_by_both(CudaDevice.open(0))


def test_view_keeps_the_bytes_when_arbiter_and_pool_are_gone() -> None:
    arbiter = create()
    pool = Pool.attach(arbiter.share_pool())
    view = pool.pool_view()
    arbiter.pool_view()[3 * PAGE] = 42
    del arbiter, pool
    assert view[3 * PAGE] == 42
    assert view.nbytes == SLABS * PAGE


def test_export_owns_its_descriptors() -> None:
    arbiter = create()
    before = descriptors()
    export = arbiter.share_pool()
    copy = PoolExport(
        export.fds,
        sizes=export.sizes,
        slab_bytes=PAGE,
        slab_count=SLABS - 1,
        header_slabs=1,
        is_on_host=True,
    )
    assert not set(copy.fds) & set(export.fds)
    assert len(descriptors()) == len(before) + 2 * OBJECTS
    pool = Pool.attach(copy)
    assert pool.slab_count == SLABS - 1
    del export, copy, pool
    assert descriptors() == before


def test_wrong_export_is_refused() -> None:
    fds = create().share_pool().fds  # closed already
    with pytest.raises(RoseError, match="fcntl"):
        PoolExport(fds, sizes=[], slab_bytes=1, slab_count=1, header_slabs=0, is_on_host=True)
    arbiter = create()
    export = arbiter.share_pool()
    sizes = [2 * PAGE, 3 * PAGE]
    wrong = PoolExport(
        export.fds[:2],
        sizes=sizes,
        slab_bytes=PAGE,
        slab_count=SLABS,
        header_slabs=0,
        is_on_host=True,
    )
    with pytest.raises(InvalidArgument, match="the descriptor has 4194304 bytes, expected 6291456"):
        Pool.attach(wrong)


def test_nothing_leaks_when_the_nth_call_of_attach_fails() -> None:
    arbiter = create()
    export = arbiter.share_pool()
    before = descriptors()
    calls = 1 + 2 * OBJECTS  # one reservation; each object is imported and mapped
    for n in range(1, calls + 1):
        with pytest.raises(OutOfMemory, match="on purpose"):
            Pool.attach(export, fail_backend_call=n)
        assert descriptors() == before
    Pool.attach(export, fail_backend_call=calls + 1)


@in_child()
def test_nothing_leaks_when_the_nth_driver_call_of_sharing_fails(fake: Fake) -> None:
    device = CudaDevice.open(0)
    arbiter = create(device)
    alive = fake.live()
    opened = descriptors()
    raised = n = 0
    while True:
        n += 1
        fake.reset()
        fake.fail("*", nth=n, code=2)
        try:
            Pool.attach(arbiter.share_pool(), device=device)
        except RoseError:
            raised += 1
        assert (fake.live(), fake.faults(), fake.depth()) == (alive, [], 0), f"call {n}"
        assert descriptors() == opened
        if fake.is_fail_pending():
            break
    # A push and a call for each export; the granularity; the reservation; import, map and access.
    assert raised == OBJECTS * 2 + 2 + 2 + OBJECTS * (2 + 3)
