"""The attention groups of a model: layers that keep the same tokens, and blocks of their own."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from rose.errors import InvalidArgument
from rose.memory.geometry import KVGeometry
from rose.units import ceil_div


class Reach(Enum):
    """Which earlier tokens a layer looks at.

    FULL: all of them.
    SLIDING: the last `window_tokens`, its own included.
    CHUNKED: those since the last multiple of `window_tokens`.
    """

    FULL = "full"
    SLIDING = "sliding"
    CHUNKED = "chunked"


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Layers of one model that need the KV of the same tokens.

    A model is a tuple of groups. They share one pool: each group is a `KVSpace` of its own, with
    its partition and its header slab, so a slab belongs to one group at a time and is laid out for
    its layers alone; what a window has left behind goes back block by block, and slab by slab to
    any other group of either tenant.

    Args:
        reach: of its layers.
        geometry: of its layers alone.
        window_tokens: None for `FULL`, otherwise at least 1.
    """

    reach: Reach
    geometry: KVGeometry
    window_tokens: int | None = None

    def __post_init__(self) -> None:
        if (self.reach is Reach.FULL) != (self.window_tokens is None):
            raise InvalidArgument(f"{self.reach.value} attention with window {self.window_tokens}")
        if self.window_tokens is not None and self.window_tokens < 1:
            raise InvalidArgument(f"window_tokens of {self.window_tokens} must be at least 1")

    def __str__(self) -> str:
        return (
            self.reach.value
            if self.window_tokens is None
            else f"{self.reach.value} {self.window_tokens}"
        )

    def blocks_for(self, tokens: int, *, step_tokens: int = 1) -> int:
        """Return the most blocks that a request of up to `tokens` tokens holds at any time.

        Behind a window blocks are given back, so a long request holds the window, what one step
        adds to it, and one block more because the window need not begin where a block does.

        Args:
            tokens: of the request, prompt and answer.
            step_tokens: the most that one step adds; more than 1 while a prompt is prefilled.
        """
        blocks = self.geometry.blocks_for(tokens)
        if self.window_tokens is None:
            return blocks
        kept = self.window_tokens - 1 + step_tokens
        return min(blocks, ceil_div(kept - 1, self.geometry.block_tokens) + 1)


def slabs_for(
    groups: Sequence[AttentionGroup], *, requests: int, tokens: int, slab_bytes: int
) -> int:
    """Return the slabs in which so many decoding requests of so many tokens each find room."""
    return sum(
        ceil_div(requests * group.blocks_for(tokens), group.geometry.blocks_per_slab(slab_bytes))
        for group in groups
    )


def requests_within(
    groups: Sequence[AttentionGroup], *, slabs: int, tokens: int, slab_bytes: int
) -> int:
    """Return how many decoding requests of so many tokens (at least 1) find room in the slabs."""
    at_most = min(
        slabs * group.geometry.blocks_per_slab(slab_bytes) // group.blocks_for(tokens)
        for group in groups
    )
    return (
        bisect_right(
            range(at_most + 1),
            slabs,
            key=lambda requests: slabs_for(
                groups, requests=requests, tokens=tokens, slab_bytes=slab_bytes
            ),
        )
        - 1
    )
