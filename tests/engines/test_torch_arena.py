"""The arena of activations: it grows while warming, and a sealed one refuses the step that grew."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rose.engines import torch_arena
from rose.engines.torch_arena import ActivationArena, ArenaState, CudaArenaMemory
from rose.errors import OutOfMemory

LIMIT = 1000


class Memory:
    """Keeps what was allocated inside, as a caching pool does."""

    def __init__(self) -> None:
        self.is_inside = False
        self.cached = 0
        self.outside = 0

    @contextmanager
    def inside(self) -> Iterator[None]:
        self.is_inside = True
        try:
            yield
        finally:
            self.is_inside = False

    def allocate(self, size: int) -> None:
        """Take `size` bytes for a while; what is cached is used first."""
        if self.is_inside:
            self.cached = max(self.cached, size)
        else:
            self.outside += size

    def size_bytes(self) -> int:
        return self.cached


@given(
    warm=st.lists(st.integers(0, LIMIT), max_size=5),
    later=st.lists(st.integers(0, 2 * LIMIT), max_size=8),
)
def test_sealed_arena_takes_what_the_warm_up_took_and_nothing_above(
    warm: list[int], later: list[int]
) -> None:
    memory = Memory()
    arena = ActivationArena(memory, limit_bytes=LIMIT)
    for size in warm:
        with arena.step():
            memory.allocate(size)
    assert arena.state is ArenaState.WARMING
    arena.seal()
    assert arena.state is ArenaState.SEALED
    largest = max(warm, default=0)
    assert arena.limit_bytes == largest
    for size in later:
        over = max(size, memory.cached) - largest
        if over == 0:
            with arena.step():
                memory.allocate(size)
            continue
        # Also the steps after it: what was taken is not given back beside a running serving.
        with pytest.raises(OutOfMemory, match=rf"allocated {over} bytes beyond"), arena.step():
            memory.allocate(size)


def test_warming_arena_has_a_limit_too() -> None:
    memory = Memory()
    arena = ActivationArena(memory, limit_bytes=LIMIT)
    with arena.step():
        memory.allocate(LIMIT)
    with pytest.raises(OutOfMemory, match="limit of 1000 bytes by 1 bytes"), arena.step():
        memory.allocate(LIMIT + 1)


def fail(memory: Memory) -> None:
    memory.allocate(5)
    raise KeyError("the step's own")


def test_what_a_step_raises_goes_through_and_others_do_not_allocate_inside() -> None:
    memory = Memory()
    arena = ActivationArena(memory, limit_bytes=LIMIT)
    arena.seal()
    with pytest.raises(KeyError), arena.step():
        fail(memory)
    with pytest.raises(OutOfMemory), arena.step():
        pass
    memory.allocate(7)
    assert memory.outside == 7


def test_memory_on_a_gpu_is_a_pool_of_torchs_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[tuple[object, torch.device]] = []

    class Pool:
        id = (0, 7)

    @contextmanager
    def use_mem_pool(pool: object, device: torch.device) -> Iterator[None]:
        used.append((pool, device))
        yield

    def memory_snapshot(pool_id: object) -> list[dict[str, int]]:
        assert pool_id == Pool.id
        return [{"total_size": 2 << 20, "allocated_size": 3}, {"total_size": 20 << 20}]

    cuda = torch_arena.torch.cuda
    monkeypatch.setattr(cuda, "MemPool", Pool)
    monkeypatch.setattr(cuda, "use_mem_pool", use_mem_pool)
    monkeypatch.setattr(cuda, "memory_snapshot", memory_snapshot)
    device = torch.device("cuda:0")
    memory = CudaArenaMemory(device)
    with memory.inside():
        pass
    ((pool, where),) = used
    assert isinstance(pool, Pool)
    assert where == device
    assert memory.size_bytes() == 22 << 20
    arena = ActivationArena.open(device, limit_bytes=30 << 20)
    with arena.step():
        pass
    arena.seal()
    assert arena.limit_bytes == 22 << 20
