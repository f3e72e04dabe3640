"""Tokens whose KV lies in blocks: what requests and sequences have in common."""

from rose._core import BlockAllocator
from rose.closing import Closing
from rose.errors import InvalidArgument
from rose.memory import KVSpace


class Tokens(Closing):
    """A row of tokens and the blocks that hold their KV.

    A step computes the tokens from `computed` to `tokens`. Tokens whose blocks were lost are
    computed again: then `computed` is 0.
    """

    def __init__(self, kv: KVSpace, *, tokens: int) -> None:
        """Start without blocks, and with `tokens` tokens to compute."""
        if tokens < 0:
            raise InvalidArgument(f"the number of tokens must be at least 0, got {tokens}")
        self._kv = kv
        self.tokens = tokens
        """Tokens so far, computed or not."""
        self.computed = 0
        """Tokens whose KV is in `blocks`."""
        self.blocks: list[int] = []
        """Block ids in the order of the tokens: a row of the engine's block table."""
        self.is_closed = False

    @property
    def remaining(self) -> int:
        """Tokens that the next step computes; none when it is closed."""
        return 0 if self.is_closed else self.tokens - self.computed

    def _missing_blocks(self, tokens: int) -> int:
        """Return the blocks that are missing for the first `tokens` tokens."""
        return max(0, self._kv.geometry.blocks_for(tokens) - len(self.blocks))

    def _free_blocks(self) -> None:
        """Free all blocks; every token is to be computed again."""
        allocator: BlockAllocator = self._kv.allocator
        allocator.free(self.blocks)
        self.blocks = []
        self.computed = 0
