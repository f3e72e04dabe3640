"""What every function of this room asks of the tensors it is given."""

from contextlib import AbstractContextManager
from typing import Any, Final

import torch

from rose.errors import InvalidArgument
from rose.kernels.blocks import PackedBlocks

# Of the same bits, as the signed numbers that every kernel takes.
_SIGNED: Final = {1: torch.int8, 2: torch.int16, 4: torch.int32}
BLOCK_ELEMENTS: Final = (65_536, 16_384)
AGE_MAX: Final = 255
MASK64: Final = (1 << 64) - 1


def bits_of(name: str, tensor: Any) -> Any:
    """Return the elements as int8, int16 or int32 that share the tensor's memory.

    A tensor that is contiguous becomes flat; another one keeps its shape, see `rose.kernels.box`.
    """
    signed = _SIGNED.get(tensor.dtype.itemsize)
    if signed is None or tensor.dtype is torch.bool:
        raise InvalidArgument(f"{name} is {tensor.dtype}; it must have 8, 16 or 32-bit elements")
    bits = tensor.detach().view(signed) if tensor.dtype is not signed else tensor.detach()
    return bits.view(-1) if bits.is_contiguous() else bits


def width_of(bits: Any) -> int:
    """Return how many bits an element has."""
    return 8 * int(bits.dtype.itemsize)


def check_twins(new: Any, shadow: Any) -> None:
    """Refuse two tensors that cannot be versions of one another."""
    if new.numel() != shadow.numel() or new.dtype != shadow.dtype or new.device != shadow.device:
        raise InvalidArgument(
            f"new is {new.numel()} of {new.dtype} on {new.device} and shadow {shadow.numel()} of "
            f"{shadow.dtype} on {shadow.device}; they must be the same"
        )


def check_keys(new: Any) -> None:
    """Refuse elements that the keys of top-k are not defined for."""
    if new.dtype not in (torch.bfloat16, torch.int16, torch.uint16):
        raise InvalidArgument(
            f"new is {str(new.dtype).removeprefix('torch.')}; the keys of top-k are defined for "
            "bfloat16"
        )


def check_ages(ages: Any, age_limit: int, like: Any) -> None:
    """Refuse ages that do not go with the elements of `like`; None goes with any."""
    if ages is None:
        return
    check_words("ages", ages, torch.uint8, like)
    if ages.numel() != like.numel():
        raise InvalidArgument(f"{ages.numel()} ages; {like.numel()} elements have one each")
    if not 1 <= age_limit <= AGE_MAX:
        raise InvalidArgument(f"age_limit {age_limit} must be from 1 to {AGE_MAX}")


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


def some_blocks(blocks: range | None, count: int) -> range:
    """Return which of `count` blocks are meant."""
    if blocks is None:
        return range(count)
    if blocks.step != 1 or not 0 <= blocks.start <= blocks.stop <= count:
        raise InvalidArgument(f"blocks {blocks} must be neighbours among {count}")
    return blocks


def first_word(first_index: int, width: int = 16) -> int:
    """Return the index of the 8-byte word that begins at element `first_index`."""
    in_word = 64 // width
    if first_index < 0 or first_index % in_word:
        raise InvalidArgument(
            f"first_index {first_index} must be a multiple of {in_word}, and not negative"
        )
    return first_index // in_word


def signed64(seed: int) -> int:
    """Return the 64 bits of a seed as the signed number that every launcher can pass."""
    bits = seed & MASK64
    return bits - (bits >> 63 << 64)


def empty_blocks(bits: Any, block_elements: int, arena_words: int | None) -> PackedBlocks:
    """Make room for the delta of `bits`, by default enough for any; words and digest are 0."""
    full, rest = divmod(bits.numel(), block_elements)
    if arena_words is None:
        width = width_of(bits)
        arena_words = full * (block_elements * width // 32) + -(-rest * width // 32)
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
