"""What every function of this room asks of the tensors it is given."""

from contextlib import AbstractContextManager
from typing import Any, Final

import torch

from rose.errors import InvalidArgument
from rose.kernels.blocks import PackedBlocks

BITS_DTYPES: Final = (torch.bfloat16, torch.float16, torch.int16, torch.uint16)
BLOCK_ELEMENTS: Final = (65_536, 16_384)
MASK64: Final = (1 << 64) - 1


def bits_of(name: str, tensor: Any) -> Any:
    """Return the elements of a 16-bit tensor as a flat int16 view of the same bytes."""
    if tensor.dtype not in BITS_DTYPES:
        raise InvalidArgument(f"{name} is {tensor.dtype}; it must have 16-bit elements")
    if not tensor.is_contiguous():
        raise InvalidArgument(f"{name} has strides {tensor.stride()}; it must be contiguous")
    return tensor.detach().view(-1).view(torch.int16)


def check_twins(new: Any, shadow: Any) -> None:
    """Refuse two tensors that cannot be versions of one another."""
    if new.numel() != shadow.numel() or new.dtype != shadow.dtype or new.device != shadow.device:
        raise InvalidArgument(
            f"new is {new.numel()} of {new.dtype} on {new.device} and shadow {shadow.numel()} of "
            f"{shadow.dtype} on {shadow.device}; they must be the same"
        )


def check_keys(new: Any) -> None:
    """Refuse elements that the keys of top-k are not defined for."""
    if new.dtype is torch.float16:
        raise InvalidArgument("new is float16; the keys of top-k are defined for bfloat16")


def check_words(name: str, tensor: Any, dtype: Any, like: Any) -> None:
    """Refuse a tensor of the format that is of another type, not flat, or elsewhere."""
    if tensor.dtype != dtype or tensor.dim() > 1 or not tensor.is_contiguous():
        raise InvalidArgument(
            f"{name} is {tensor.dtype} of shape {tuple(tensor.shape)}; it must be flat {dtype}"
        )
    if tensor.device != like.device:
        raise InvalidArgument(f"{name} is on {tensor.device}; it must be on {like.device}")


def check_block_elements(block_elements: int) -> None:
    """Refuse a block size that the format does not know."""
    if block_elements not in BLOCK_ELEMENTS:
        raise InvalidArgument(
            f"block_elements {block_elements} must be {' or '.join(map(str, BLOCK_ELEMENTS))}"
        )


def check_table(entries: Any, offsets: Any, payload: Any, like: Any, block_elements: int) -> None:
    """Refuse a table that does not go with the elements of `like`."""
    check_block_elements(block_elements)
    check_words("entries", entries, torch.int64, like)
    check_words("offsets", offsets, torch.int64, like)
    check_words("payload", payload, torch.int32, like)
    blocks = -(-like.numel() // block_elements)
    if entries.numel() != blocks or offsets.numel() != blocks:
        raise InvalidArgument(
            f"{entries.numel()} entries and {offsets.numel()} offsets: {like.numel()} elements "
            f"have {blocks} blocks of {block_elements}"
        )


def first_word(first_index: int) -> int:
    """Return the index of the 8-byte word that begins at element `first_index`."""
    if first_index < 0 or first_index % 4:
        raise InvalidArgument(
            f"first_index {first_index} must be a multiple of 4, and not negative"
        )
    return first_index // 4


def signed64(seed: int) -> int:
    """Return the 64 bits of a seed as the signed number that every launcher can pass."""
    bits = seed & MASK64
    return bits - (bits >> 63 << 64)


def empty_blocks(bits: Any, block_elements: int, arena_words: int | None) -> PackedBlocks:
    """Make room for the delta of `bits`, by default enough for any; words and digest are 0."""
    full, rest = divmod(bits.numel(), block_elements)
    if arena_words is None:
        arena_words = full * (block_elements // 2) + (rest + 1) // 2
    if arena_words < 0:
        raise InvalidArgument(f"arena_words {arena_words} must not be negative")
    entries = torch.empty(full + (rest > 0), dtype=torch.int64, device=bits.device)
    sums = torch.zeros(3, dtype=torch.int64, device=bits.device)
    return PackedBlocks(
        entries=entries,
        offsets=torch.empty_like(entries),
        arena=torch.empty(arena_words, dtype=torch.int32, device=bits.device),
        words=sums[0],
        digest=sums[1:],
    )


def on_device_of(tensor: Any) -> AbstractContextManager[Any]:
    """Make the tensor's GPU the current one, which Triton launches on; nothing for a CPU tensor."""
    guard: AbstractContextManager[Any] = torch.cuda.device_of(tensor)
    return guard
