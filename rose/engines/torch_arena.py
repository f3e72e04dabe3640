"""A fixed arena for the borrower's activations: after a warm-up the arena never grows.

Neither the KV pool nor a certificate counts memory that a borrower allocates. So the borrower's
steps use a private pool of torch's caching allocator, which may grow during a warm-up with the
largest batches, but not later.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from enum import Enum
from typing import Protocol

import torch

from rose.errors import InvalidArgument, OutOfMemory, Unavailable, check


class ArenaState(Enum):
    """The two phases of an arena: it grows in the first only."""

    WARMING = "it grows with what steps need"
    SEALED = "it is as large as it will ever be"


class ArenaMemory(Protocol):
    """Device memory set apart for one borrower."""

    def inside(self) -> AbstractContextManager[None]:
        """Make this thread's allocations use this memory."""
        ...

    def size_bytes(self) -> int:
        """Return the bytes of device memory that were taken so far, whether in use or not."""
        ...


class CudaArenaMemory:
    """A private pool in torch's caching allocator; serving's allocations do not go there."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.MemPool()

    def inside(self) -> AbstractContextManager[None]:
        """Make this thread's allocations use the pool; allocations of other threads do not."""
        inside: AbstractContextManager[None] = torch.cuda.use_mem_pool(self._pool, self._device)
        return inside

    def size_bytes(self) -> int:
        """Return the total size of the pool's segments in bytes."""
        segments = torch.cuda.memory_snapshot(self._pool.id)
        return sum(int(one["total_size"]) for one in segments)


class ActivationArena:
    """Lets steps allocate device memory; once the arena is sealed, a step that enlarges it fails.

    Life: WARMING → `seal` → SEALED. While WARMING, run the largest batches that will occur. Growth
    is detected at the end of a step. That step and all later ones fail, because an arena never
    shrinks: a device frees memory only when all its streams, including serving's, are idle. Drop
    the borrower to free its arena. KV and weights are in slabs and do not count. Only the thread
    that runs the steps uses an arena.

    Args:
        memory: device memory for the borrower's activations.
        limit_bytes: largest size, also while WARMING.

    Raises:
        InvalidArgument: the limit is below one byte.
    """

    def __init__(self, memory: ArenaMemory, *, limit_bytes: int) -> None:
        if limit_bytes < 1:
            raise InvalidArgument(f"limit_bytes of an arena must be at least 1, got {limit_bytes}")
        self._memory = memory
        self._limit_bytes = limit_bytes
        self.state = ArenaState.WARMING

    @classmethod
    def open(cls, device: torch.device, *, limit_bytes: int) -> "ActivationArena":
        """Return an arena on a GPU.

        Raises:
            Unavailable: the device is not a GPU, so torch does not count its allocations.
        """
        if device.type != "cuda":
            raise Unavailable(
                f"the device '{device}' is not a GPU: an arena needs torch's counts of allocations"
            )
        return cls(CudaArenaMemory(device), limit_bytes=limit_bytes)

    @property
    def limit_bytes(self) -> int:
        """The largest size from now on."""
        return self._limit_bytes

    @contextmanager
    def step(self) -> Iterator[None]:
        """Run a step in the arena.

        Raises:
            OutOfMemory: the step exceeded the limit; the message says by how much.
        """
        with self._memory.inside():
            yield
        over = self._memory.size_bytes() - self._limit_bytes
        if over > 0:
            raise OutOfMemory(self._why(over))

    def _why(self, over: int) -> str:
        if self.state is ArenaState.WARMING:
            return (
                f"the borrower's activations exceed the arena's limit of {self._limit_bytes} bytes "
                f"by {over} bytes: lower max_batch_tokens or raise limit_bytes"
            )
        return (
            f"a step allocated {over} bytes beyond the sealed arena of {self._limit_bytes} bytes: "
            "warm up with the largest batch"
        )

    def seal(self) -> None:
        """Stop growth: the current size becomes the limit."""
        check(self.state is ArenaState.WARMING, "the arena is sealed already")
        self.state = ArenaState.SEALED
        self._limit_bytes = min(self._limit_bytes, self._memory.size_bytes())
