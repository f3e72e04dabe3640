"""A pool in two processes: one makes it, the other is handed its descriptors over a socket."""

from pathlib import Path

import pytest

from rose._core import Arbiter, CudaDevice, Pool, PoolExport
from rose.errors import InvalidArgument, RoseError

PAGE = 2 << 20
SLABS = 5
OBJECTS = 3


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
    with pytest.raises(InvalidArgument, match="must have 6291456 bytes, got 4194304"):
        Pool.attach(wrong)
