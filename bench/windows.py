"""A borrower's own mapping of its lent slabs, for a borrower in serving's process."""

import os
from collections.abc import Collection

from rose._core import Arbiter, CudaDevice, MappedWindow
from rose.memory import LentSlabs


def open_window(
    arbiter: Arbiter, *, header_index: int, device: CudaDevice | None = None
) -> MappedWindow:
    window = MappedWindow.create(
        slab_bytes=arbiter.slab_bytes,
        slab_count=arbiter.slab_count,
        header_slabs=arbiter.header_slabs,
        device=device,
    )
    fd = arbiter.share_header(header_index)
    try:
        window.open_header(header_index, fd=fd)
    finally:
        os.close(fd)
    return window


def take(window: MappedWindow, lent: LentSlabs) -> None:
    """Map lent slabs."""
    for slab, fd in lent.fds.items():
        window.take(slab, fd=fd)


def keep(window: MappedWindow, held: Collection[int]) -> None:
    """Release every slab that is not in `held`; a later `sweep` unmaps it."""
    for slab in window.held:
        if slab not in held:
            window.give(slab)
