"""The attention groups of a model: the layers of a group keep KV of the same tokens."""

from dataclasses import dataclass
from enum import Enum

from rose.errors import InvalidArgument
from rose.memory.geometry import KVGeometry
from rose.units import ceil_div


class Reach(Enum):
    """The earlier tokens that a layer attends to.

    FULL: all earlier tokens.
    SLIDING: the last `window_tokens` tokens, including the token itself.
    CHUNKED: the tokens since the last position that is a multiple of `window_tokens`.
    """

    FULL = "full"
    SLIDING = "sliding"
    CHUNKED = "chunked"


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Layers of one model that keep KV of the same tokens.

    A model is a tuple of groups. Plans count the KV of each group. In the pool a model's blocks are
    all alike, and an engine's own allocator shares them between its groups.

    Args:
        reach: attention of the group's layers.
        geometry: KV layout of the group's layers.
        window_tokens: size of the window in tokens, >= 1; None for `FULL`.
    """

    reach: Reach
    geometry: KVGeometry
    window_tokens: int | None = None

    def __post_init__(self) -> None:
        if (self.reach is Reach.FULL) != (self.window_tokens is None):
            raise InvalidArgument(
                f"window_tokens must be None for full attention and a number otherwise, got "
                f"{self.window_tokens} for {self.reach.value} attention"
            )
        if self.window_tokens is not None and self.window_tokens < 1:
            raise InvalidArgument(f"window_tokens must be at least 1, got {self.window_tokens}")

    def __str__(self) -> str:
        return (
            self.reach.value
            if self.window_tokens is None
            else f"{self.reach.value} {self.window_tokens}"
        )

    def blocks_for(self, tokens: int, *, step_tokens: int = 1) -> int:
        """Return the largest number of blocks that a request holds at any time.

        Blocks that a window has passed are freed. So a long request holds the blocks of the window
        and of one step's tokens, and one more because the window may begin within a block.

        Args:
            tokens: largest length of the request, prompt and answer.
            step_tokens: largest number of tokens that one step adds; above 1 in prefill.
        """
        blocks = self.geometry.blocks_for(tokens)
        if self.window_tokens is None:
            return blocks
        kept = self.window_tokens - 1 + step_tokens
        return min(blocks, ceil_div(kept - 1, self.geometry.block_tokens) + 1)
