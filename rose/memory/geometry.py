"""How the KV blocks of one model lie in slabs, and which slab size suits several models."""

import math
from dataclasses import dataclass
from enum import Enum
from typing import Final

from rose.errors import InvalidArgument
from rose.units import MIB, ceil_div

PAGE_BYTES: Final = 2 * MIB  # the driver's unit of physical memory
SLAB_BYTES_MAX: Final = 128 * MIB
WASTE_MAX: Final = 0.0625


class Layout(Enum):
    """What a block id names.

    LAYER_MAJOR: inside a slab, one region per layer; an id names one block of every layer, at a
        constant distance from layer to layer. Stock paged-attention kernels take it as it is.
    BLOCK_MAJOR: whole blocks, all layers of a block side by side, as transformers stores them.
    """

    LAYER_MAJOR = "layer_major"
    BLOCK_MAJOR = "block_major"


@dataclass(frozen=True, slots=True)
class KVGeometry:
    """The sizes of one model's KV cache.

    Args:
        layers: attention layers that keep KV.
        block_tokens: tokens in one block.
        bytes_per_token: of K and V over all layers.
        layout: how blocks lie in a slab.
    """

    layers: int
    block_tokens: int
    bytes_per_token: int
    layout: Layout = Layout.LAYER_MAJOR

    def __post_init__(self) -> None:
        for name in ("layers", "block_tokens", "bytes_per_token"):
            if getattr(self, name) < 1:
                raise InvalidArgument(f"{name} of {getattr(self, name)} must be at least 1")
        if self.block_bytes % self.layers:
            raise InvalidArgument(
                f"a block of {self.block_bytes} bytes does not divide into {self.layers} layers"
            )

    @classmethod
    def from_attention(
        cls,
        *,
        layers: int,
        kv_heads: int,
        head_dim: int,
        dtype_bytes: int,
        block_tokens: int,
        layout: Layout = Layout.LAYER_MAJOR,
    ) -> "KVGeometry":
        """Return the geometry of plain attention, where every layer keeps K and V of each head."""
        bytes_per_token = 2 * layers * kv_heads * head_dim * dtype_bytes
        return cls(layers, block_tokens, bytes_per_token, layout)

    @property
    def block_bytes(self) -> int:
        """Return the bytes of one block over all layers."""
        return self.bytes_per_token * self.block_tokens

    @property
    def layer_block_bytes(self) -> int:
        """Return the bytes of one block in one layer."""
        return self.block_bytes // self.layers

    @property
    def id_bytes(self) -> int:
        """Return the distance between the addresses of neighbouring block ids."""
        return self.layer_block_bytes if self.layout is Layout.LAYER_MAJOR else self.block_bytes

    def blocks_per_slab(self, slab_bytes: int) -> int:
        """Return how many blocks every slab holds, wherever it lies.

        When ids do not divide the slab, the first id of a slab starts up to this much behind it:
        a slab may hold one block more in `BLOCK_MAJOR`, but never fewer.
        """
        skew = self.id_bytes - math.gcd(self.id_bytes, slab_bytes)
        return max(0, slab_bytes - skew) // self.block_bytes

    def waste(self, slab_bytes: int) -> float:
        """Return the share of a slab that no block uses."""
        return 1 - self.blocks_per_slab(slab_bytes) * self.block_bytes / slab_bytes

    def blocks_for(self, tokens: int) -> int:
        """Return the blocks that hold `tokens` tokens."""
        return ceil_div(tokens, self.block_tokens)


def choose_slab_bytes(
    *geometries: KVGeometry,
    page_bytes: int = PAGE_BYTES,
    at_most: int = SLAB_BYTES_MAX,
    waste_at_most: float = WASTE_MAX,
) -> int:
    """Return the smallest multiple of `page_bytes` that wastes little in every geometry.

    Small slabs make fine loans; the largest block sets how small they can be.

    Raises:
        InvalidArgument: no size up to `at_most` suits all; the sentence names the geometry that
            is worst off, and what it would waste at its best.
    """
    sizes = range(page_bytes, at_most + 1, page_bytes)
    for slab_bytes in sizes:
        if all(one.waste(slab_bytes) <= waste_at_most for one in geometries):
            return slab_bytes
    least = [(min((one.waste(size) for size in sizes), default=1.0), one) for one in geometries]
    waste, worst = max(least, key=lambda pair: pair[0])
    raise InvalidArgument(
        f"no slab of up to {at_most} bytes suits all geometries: {worst} wastes at least "
        f"{waste:.1%} of a slab alone, {waste_at_most:.1%} are allowed; lower block_tokens"
    )
