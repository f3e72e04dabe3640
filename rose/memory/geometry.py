"""How the KV blocks of one model lie in slabs, and which slab size suits several models."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from rose.errors import InvalidArgument
from rose.units import MIB, ceil_div

PAGE_BYTES: Final = 2 * MIB  # the driver's unit of physical memory
SLAB_BYTES_MAX: Final = 128 * MIB
WASTE_MAX: Final = 0.0625
# The most that a model may have; products of them stay far below 2**63.
_SIZES_MAX: Final = {"layers": 1 << 16, "block_tokens": 1 << 20, "bytes_per_token": 1 << 40}
NULL_BLOCKS_MIN: Final = 2  # one that reads as zeros, one that padding may be written to


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
        bytes_per_token: of K and V over all layers, with the scales that lie beside them.
        layout: how blocks lie in a slab.
    """

    layers: int
    block_tokens: int
    bytes_per_token: int
    layout: Layout = Layout.LAYER_MAJOR

    def __post_init__(self) -> None:
        for name, most in _SIZES_MAX.items():
            if not 1 <= getattr(self, name) <= most:
                raise InvalidArgument(
                    f"{name} of {getattr(self, name)} must be at least 1 and at most {most}"
                )
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
        tp: int = 1,
        scale_bytes: int = 0,
        layout: Layout = Layout.LAYER_MAJOR,
    ) -> "KVGeometry":
        """Return the geometry of attention whose layers keep K and V of each head.

        Args:
            layers: that keep KV.
            kv_heads: of the whole model; fewer than query heads in grouped-query attention.
            head_dim: elements of one head.
            dtype_bytes: of an element: 2 for bf16, 1 for FP8.
            block_tokens: tokens in one block.
            tp: devices that share the model; this is the geometry of each of them.
            scale_bytes: per token, per head, K and V apart, of scales inside the block. 4 for the
                `fp8_per_token_head` of vLLM; 0 for its `fp8` and SGLang's, which keep one scale
                per layer outside the pool.
            layout: how blocks lie in a slab.

        Raises:
            InvalidArgument: the heads can be neither divided by `tp` nor repeated.
        """
        heads = shard_heads(kv_heads, tp)
        bytes_per_token = 2 * layers * heads * (head_dim * dtype_bytes + scale_bytes)
        return cls(layers, block_tokens, bytes_per_token, layout)

    @classmethod
    def from_latent(
        cls,
        *,
        layers: int,
        latent_dim: int,
        rope_dim: int,
        dtype_bytes: int,
        block_tokens: int,
        rope_dtype_bytes: int | None = None,
        scale_bytes: int = 0,
        layout: Layout = Layout.LAYER_MAJOR,
    ) -> "KVGeometry":
        """Return the geometry of latent attention (MLA): one vector a token, for K and V together.

        Every head reads all of it, so each device of a tensor parallel group keeps the same bytes.

        Args:
            layers: that keep KV.
            latent_dim: elements of the latent, `kv_lora_rank`.
            rope_dim: elements of the key that carries positions, `qk_rope_head_dim`.
            dtype_bytes: of an element of the latent.
            block_tokens: tokens in one block.
            rope_dtype_bytes: of an element of that key; None if as the latent.
            scale_bytes: per token, of scales inside the block: 16 for the `fp8_ds_mla` of vLLM,
                whose keys stay bf16; 0 for its `fp8`.
            layout: how blocks lie in a slab.
        """
        key_bytes = rope_dim * (dtype_bytes if rope_dtype_bytes is None else rope_dtype_bytes)
        bytes_per_token = layers * (latent_dim * dtype_bytes + key_bytes + scale_bytes)
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


def shard_heads(kv_heads: int, tp: int) -> int:
    """Return the KV heads that each of `tp` devices keeps.

    They are divided; where there are more devices than heads, several devices keep the same one.

    Raises:
        InvalidArgument: neither number divides the other.
    """
    if tp < 1 or (kv_heads % tp and tp % kv_heads):
        raise InvalidArgument(f"{kv_heads} KV heads cannot be shared out to {tp} devices")
    return max(1, kv_heads // tp)


def choose_slab_bytes(
    *geometries: KVGeometry,
    page_bytes: int = PAGE_BYTES,
    at_most: int = SLAB_BYTES_MAX,
) -> int:
    """Return the smallest multiple of `page_bytes` that wastes little in every geometry.

    Small slabs make fine loans; the largest block sets how small they can be. A model with several
    attention groups has one geometry for each, and any slab may come to any group of either tenant,
    so all of them are named. Each keeps its null blocks in a header slab, where they must fit.

    Raises:
        InvalidArgument: no size up to `at_most` suits all; the sentence names the geometry that
            is worst off, and what it would waste at its best.
    """
    sizes = range(page_bytes, at_most + 1, page_bytes)
    for slab_bytes in sizes:
        if all(_loss(one, slab_bytes) <= WASTE_MAX for one in geometries):
            return slab_bytes
    raise InvalidArgument(
        f"no slab of up to {at_most} bytes suits all geometries: "
        f"{_why_not(geometries, sizes)}; lower block_tokens"
    )


def _why_not(geometries: Sequence[KVGeometry], sizes: range) -> str:
    least = [(min((_loss(one, size) for size in sizes), default=1.0), one) for one in geometries]
    waste, worst = max(least, key=lambda pair: pair[0])
    if waste <= WASTE_MAX:
        return "each has sizes that suit it alone, and none of them suits the others"
    if not any(worst.blocks_per_slab(size) >= NULL_BLOCKS_MIN for size in sizes):
        return (
            f"{worst} has blocks of {worst.block_bytes} bytes, and {NULL_BLOCKS_MIN} must fit a "
            f"slab for null blocks"
        )
    return f"{worst} wastes at least {waste:.1%} of a slab alone, {WASTE_MAX:.1%} are allowed"


def _loss(geometry: KVGeometry, slab_bytes: int) -> float:
    """Return the waste; all of a slab when the null blocks do not fit it."""
    fits = geometry.blocks_per_slab(slab_bytes) >= NULL_BLOCKS_MIN
    return geometry.waste(slab_bytes) if fits else 1.0
