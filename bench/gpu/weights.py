"""Two versions of weights, as a training step leaves them, for the codec rows."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

CHUNK: Final = 1 << 26
CHANGED_SHARE: Final = 0.01
# Share of the changes that are one step of the last bit.
STEP_SHARE: Final = 0.89
LARGEST_JUMP: Final = 64
SPREAD: Final = 0.02


@dataclass(slots=True)
class Versions:
    """Flat int16 bits of bf16 weights, before and after a step."""

    old: Any
    new: Any

    @property
    def count(self) -> int:
        return int(self.old.numel())


def _parts(count: int) -> Iterator[slice]:
    for at in range(0, count, CHUNK):
        yield slice(at, min(count, at + CHUNK))


def two_versions(count: int, *, seed: int) -> Versions:
    """Return random weights on the GPU, of which one percent changes, with a mix of step sizes."""
    import torch

    device = torch.device("cuda:0")
    torch.manual_seed(seed)
    old = torch.empty(count, dtype=torch.int16, device=device)
    new = torch.empty_like(old)
    for part in _parts(count):
        size = part.stop - part.start
        bits = (torch.randn(size, device=device) * SPREAD).to(torch.bfloat16).view(torch.int16)
        kind = torch.rand(size, device=device)
        step = torch.randint(0, 2, (size,), dtype=torch.int16, device=device) * 2 - 1
        jump = torch.randint(2, LARGEST_JUMP, (size,), dtype=torch.int16, device=device)
        change = torch.where(kind < CHANGED_SHARE * STEP_SHARE, step, step * jump)
        old[part] = bits
        new[part] = bits + change * (kind < CHANGED_SHARE)
    return Versions(old, new)


def arena_words_of(count: int) -> int:
    """Return the arena size, in words, that holds a payload of 1 % changes several times."""
    # A change takes about ten bits in GAP, and an exception 24 more; a sixteenth of the elements in
    # words is 200 bits per change.
    return max(1024, count // 16)
