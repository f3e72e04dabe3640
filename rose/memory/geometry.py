"""The layout of a model's KV blocks in slabs, and a slab size for several models."""

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
# Upper limits; a block has at most 2**60 bytes, which fits 64-bit integers.
_SIZES_MAX: Final = {"layers": 1 << 16, "block_tokens": 1 << 20, "bytes_per_token": 1 << 40}
NULL_BLOCKS_MIN: Final = 2  # one to read zeros from, one to write padding to


class Layout(Enum):
    """The order of a slab's bytes.

    LAYER_MAJOR: a slab has one region per layer, and a block has a part in every region; the parts
        are equally far apart. Stock paged-attention kernels accept this layout unchanged.
    BLOCK_MAJOR: a block's layers are side by side, as transformers stores them.
    """

    LAYER_MAJOR = "layer_major"
    BLOCK_MAJOR = "block_major"


@dataclass(frozen=True, slots=True)
class KVGeometry:
    """Sizes of one model's KV cache.

    Args:
        layers: number of attention layers that keep KV.
        block_tokens: tokens per block.
        bytes_per_token: bytes of K and V per token over all layers, including their scales.
        layout: layout of blocks in a slab.
    """

    layers: int
    block_tokens: int
    bytes_per_token: int
    layout: Layout = Layout.LAYER_MAJOR

    def __post_init__(self) -> None:
        for name, most in _SIZES_MAX.items():
            if not 1 <= getattr(self, name) <= most:
                raise InvalidArgument(f"{name} must be from 1 to {most}, got {getattr(self, name)}")
        if self.block_bytes % self.layers:
            raise InvalidArgument(
                f"bytes_per_token x block_tokens must be a multiple of layers, got "
                f"{self.block_bytes} bytes for {self.layers} layers"
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
        """Return the geometry of attention with K and V per head.

        Args:
            layers: number of layers that keep KV.
            kv_heads: KV heads of the whole model; fewer than query heads in grouped-query
                attention.
            head_dim: elements per head.
            dtype_bytes: bytes per element: 2 for bf16, 1 for FP8.
            block_tokens: tokens per block.
            tp: number of tensor-parallel devices; the result is for one of them.
            scale_bytes: bytes of scales inside the block, per token and head, for K and V each: 4
                for vLLM's `fp8_per_token_head`; 0 for `fp8` of vLLM and SGLang, which keep one
                scale per layer outside the pool.
            layout: layout of blocks in a slab.

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
        """Return the geometry of latent attention (MLA): one vector per token for both K and V.

        Every head reads the whole vector, so each tensor-parallel device keeps the same bytes.

        Args:
            layers: number of layers that keep KV.
            latent_dim: elements of the latent vector, `kv_lora_rank`.
            rope_dim: elements of the position key, `qk_rope_head_dim`.
            dtype_bytes: bytes per element of the latent vector.
            block_tokens: tokens per block.
            rope_dtype_bytes: bytes per element of the position key; None for `dtype_bytes`.
            scale_bytes: bytes of scales inside the block, per token: 16 for vLLM's `fp8_ds_mla`,
                whose position keys stay bf16; 0 for its `fp8`.
            layout: layout of blocks in a slab.
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
        """Return the distance in bytes between the addresses of consecutive block ids."""
        return self.layer_block_bytes if self.layout is Layout.LAYER_MAJOR else self.block_bytes

    def blocks_per_slab(self, slab_bytes: int) -> int:
        """Return the number of blocks that fit in any slab of the pool.

        Block ids count from the tenant's header slab. If `slab_bytes` is not a multiple of
        `id_bytes`, a slab's first block may start some bytes after the slab's start. In
        `BLOCK_MAJOR` some slabs hold one block more than this, but none holds fewer.
        """
        skew = self.id_bytes - math.gcd(self.id_bytes, slab_bytes)
        return max(0, slab_bytes - skew) // self.block_bytes

    def waste(self, slab_bytes: int) -> float:
        """Return the share of a slab that no block uses."""
        return 1 - self.blocks_per_slab(slab_bytes) * self.block_bytes / slab_bytes

    def blocks_for(self, tokens: int) -> int:
        """Return the number of blocks that hold `tokens` tokens."""
        return ceil_div(tokens, self.block_tokens)


def shard_heads(kv_heads: int, tp: int) -> int:
    """Return the number of KV heads on each of `tp` devices.

    Heads are divided among the devices. With more devices than heads, several devices keep a copy
    of the same head.

    Raises:
        InvalidArgument: neither number divides the other.
    """
    if tp < 1 or (kv_heads % tp and tp % kv_heads):
        raise InvalidArgument(
            f"{kv_heads} KV heads cannot be divided among {tp} devices: choose a divisor or a "
            f"multiple of {kv_heads}"
        )
    return max(1, kv_heads // tp)


def choose_slab_bytes(
    *geometries: KVGeometry,
    page_bytes: int = PAGE_BYTES,
    at_most: int = SLAB_BYTES_MAX,
) -> int:
    """Return the smallest slab size that wastes at most 6.25 % of a slab in every geometry.

    With small slabs, loans are fine-grained; the largest block limits how small a slab can be. A
    slab must also have room for the null blocks.

    Args:
        geometries: geometry of each attention group of all models that share the pool, since any
            slab may move to any group of either tenant.
        page_bytes: the slab size is a multiple of this many bytes.
        at_most: largest size in bytes.

    Raises:
        InvalidArgument: no size up to `at_most` suits all geometries; the message has the reason.
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
        return "each of them has a suitable size, but no size suits all of them"
    if not any(worst.blocks_per_slab(size) >= NULL_BLOCKS_MIN for size in sizes):
        return (
            f"{worst} has blocks of {worst.block_bytes} bytes, and a slab must hold at least "
            f"{NULL_BLOCKS_MIN} of them as null blocks"
        )
    return f"{worst} alone wastes at least {waste:.1%} of a slab, {WASTE_MAX:.1%} are allowed"


def _loss(geometry: KVGeometry, slab_bytes: int) -> float:
    """Return the wasted share; 1 if the null blocks do not fit."""
    fits = geometry.blocks_per_slab(slab_bytes) >= NULL_BLOCKS_MIN
    return geometry.waste(slab_bytes) if fits else 1.0
