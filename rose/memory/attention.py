"""The attention groups of a model: layers that keep the same tokens, in blocks of their own."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from rose.errors import InvalidArgument
from rose.memory.geometry import KVGeometry
from rose.units import ceil_div


class Reach(Enum):
    """The earlier tokens that a layer attends to.

    FULL: all of them.
    SLIDING: the last `window_tokens`, including the token itself.
    CHUNKED: those since the last multiple of `window_tokens`.
    """

    FULL = "full"
    SLIDING = "sliding"
    CHUNKED = "chunked"


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Layers of one model that keep KV of the same tokens.

    A model is a tuple of groups. They share one pool: each group is a `KVSpace` of its own in the
    tenant's partition. A slab belongs to one group at a time and is laid out for its layers alone.
    Blocks that a window has passed are freed one by one; whole slabs then move to any other group
    of either tenant.

    Args:
        reach: attention of its layers.
        geometry: KV layout of its layers alone.
        window_tokens: size of the window, >= 1; None for `FULL`.
    """

    reach: Reach
    geometry: KVGeometry
    window_tokens: int | None = None

    def __post_init__(self) -> None:
        if (self.reach is Reach.FULL) != (self.window_tokens is None):
            raise InvalidArgument(
                f"only attention with a window has window_tokens, got {self.window_tokens} for "
                f"{self.reach.value} attention"
            )
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

        Blocks that a window has passed are freed, so a long request holds the window, the tokens of
        one step, and one more block because the window need not begin at a block.

        Args:
            tokens: length of the request, prompt and answer.
            step_tokens: most tokens that one step adds; above 1 in prefill.
        """
        blocks = self.geometry.blocks_for(tokens)
        if self.window_tokens is None:
            return blocks
        kept = self.window_tokens - 1 + step_tokens
        return min(blocks, ceil_div(kept - 1, self.geometry.block_tokens) + 1)


def slabs_for(
    groups: Sequence[AttentionGroup], *, requests: int, tokens: int, slab_bytes: int
) -> int:
    """Return the slabs that `requests` decoding requests of `tokens` tokens each need."""
    return sum(
        ceil_div(requests * group.blocks_for(tokens), group.geometry.blocks_per_slab(slab_bytes))
        for group in groups
    )


def requests_within(
    groups: Sequence[AttentionGroup], *, slabs: int, tokens: int, slab_bytes: int
) -> int:
    """Return the number of decoding requests of `tokens` tokens (>= 1) that fit in the slabs."""
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
