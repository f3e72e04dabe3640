"""Tokens with KV in blocks: the common part of requests and sequences."""

from rose._core import BlockAllocator
from rose.closing import Closing
from rose.executor.inputs import is_count, require
from rose.memory import KVSpace


class Tokens(Closing):
    """A row of tokens and the blocks that hold their KV.

    A step computes the tokens from `computed` to `tokens`. If the blocks are taken away, `computed`
    becomes 0 and all tokens are computed again.
    """

    def __init__(self, kv: KVSpace, *, tokens: int) -> None:
        require(is_count(tokens), "the number of tokens must be at least 0", tokens)
        self._kv = kv
        self.tokens = tokens
        """Number of tokens, computed or not."""
        self.computed = 0
        """Number of tokens with KV in `blocks`."""
        self.blocks: list[int] = []
        """Block ids in token order: a row of the engine's block table."""
        self.is_closed = False

    @property
    def remaining(self) -> int:
        """Number of tokens that the next step computes; 0 after `close`."""
        return 0 if self.is_closed else self.tokens - self.computed

    def _missing_blocks(self, tokens: int) -> int:
        """Return the number of further blocks that the first `tokens` tokens need."""
        return max(0, self._kv.geometry.blocks_for(tokens) - len(self.blocks))

    def _free_blocks(self) -> None:
        """Free all blocks; all tokens must be recomputed."""
        allocator: BlockAllocator = self._kv.allocator
        allocator.free(self.blocks)
        self.blocks = []
        self.computed = 0
