"""The borrower's activations in a fixed arena: after its warm-up it gets no device memory more.

A borrower that allocates takes memory that neither the pool nor a certificate knows of. So its
steps run on a memory pool of their own in torch's caching allocator, and the pool may grow while
the largest batches are tried out, not later.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from enum import Enum
from typing import Protocol

import torch

from rose.errors import InvalidArgument, OutOfMemory, Unavailable, check


class ArenaState(Enum):
    """Whether the arena may still grow."""

    WARMING = "it grows with what steps need"
    SEALED = "it is as large as it will ever be"


class ArenaMemory(Protocol):
    """Device memory that is set apart for one borrower."""

    def inside(self) -> AbstractContextManager[None]:
        """Let this thread's allocations go there."""
        ...

    def size_bytes(self) -> int:
        """Return what it has taken of the device, used or not."""
        ...


class CudaArenaMemory:
    """A private pool in torch's caching allocator; serving's allocations do not go there."""

    def __init__(self, device: torch.device) -> None:
        """Begin empty."""
        self._device = device
        self._pool = torch.cuda.MemPool()

    def inside(self) -> AbstractContextManager[None]:
        """Let this thread's allocations go there; not those of threads it starts meanwhile."""
        inside: AbstractContextManager[None] = torch.cuda.use_mem_pool(self._pool, self._device)
        return inside

    def size_bytes(self) -> int:
        """Return the sum of its segments."""
        segments = torch.cuda.memory_snapshot(self._pool.id)
        return sum(int(one["total_size"]) for one in segments)


class ActivationArena:
    """Lets steps allocate in their arena, and refuses a step that made it larger once sealed.

    Its life: WARMING → `seal` → SEALED. While WARMING, run the largest batches that will come. The
    growth is seen when the step ends, and that step and all after it fail: an arena never shrinks,
    because a device frees memory only when all its streams are idle, serving's too. Drop the
    borrower to get it back. Nothing outside the arena is guarded: KV and weights lie in the pool of
    slabs. Used by the thread that runs the steps.

    Args:
        memory: the borrower's.
        limit_bytes: what it may be at most, also while WARMING.

    Raises:
        InvalidArgument: a limit below one byte.
    """

    def __init__(self, memory: ArenaMemory, *, limit_bytes: int) -> None:
        if limit_bytes < 1:
            raise InvalidArgument(f"an arena of {limit_bytes} bytes holds nothing: raise the limit")
        self._memory = memory
        self._limit_bytes = limit_bytes
        self.state = ArenaState.WARMING

    @classmethod
    def open(cls, device: torch.device, *, limit_bytes: int) -> "ActivationArena":
        """Return an arena on a GPU.

        Raises:
            Unavailable: the device is none that torch counts allocations of.
        """
        if device.type != "cuda":
            raise Unavailable(
                f"an arena guards allocations on a GPU, and on '{device}' nobody counts them"
            )
        return cls(CudaArenaMemory(device), limit_bytes=limit_bytes)

    @property
    def limit_bytes(self) -> int:
        """What it may be at most from now on."""
        return self._limit_bytes

    @contextmanager
    def step(self) -> Iterator[None]:
        """Run a step inside.

        Raises:
            OutOfMemory: the step allocated more than there is; the sentence says how much.
        """
        with self._memory.inside():
            yield
        over = self._memory.size_bytes() - self._limit_bytes
        if over > 0:
            raise OutOfMemory(self._why(over))

    def _why(self, over: int) -> str:
        if self.state is ArenaState.WARMING:
            return (
                f"the borrower's activations take {over} bytes more than their {self._limit_bytes} "
                "bytes: lower max_batch_tokens or raise the arena's limit"
            )
        return (
            f"a step allocated {over} bytes beyond the arena of {self._limit_bytes} bytes, which "
            "is sealed: warm up with the largest batch"
        )

    def seal(self) -> None:
        """Let it grow no more: what it is now is its limit."""
        check(self.state is ArenaState.WARMING, "the arena is sealed already")
        self.state = ArenaState.SEALED
        self._limit_bytes = min(self._limit_bytes, self._memory.size_bytes())
