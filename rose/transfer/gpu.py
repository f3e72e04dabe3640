"""The codec on tensors of a GPU. A `Delta` is host memory, so both ends wait for the stream."""

from typing import Any

import numpy as np
import numpy.typing as npt

from rose import _core
from rose.errors import InvalidArgument, check
from rose.kernels.blocks import BlockCodec, PackedBlocks
from rose.kernels.gpu import codec_of, on_gpu_of
from rose.transfer.delta import Delta

_MASK64 = (1 << 64) - 1


class GpuBackend:
    """The embedded CUDA kernels, or the Triton twins where there are none.

    Work goes into torch's current stream of the tensors' device; the device as a whole is never
    waited for. An arena of the size of the weights is taken while a delta is packed.
    """

    def __init__(self, codec: BlockCodec) -> None:
        """Compute by `codec`."""
        self._codec = codec

    def delta_pack(self, new: Any, shadow: Any, *, block_elements: int, threshold: int) -> Delta:
        """Pack on the device, and fetch the result."""
        span = 2 * new.numel()
        if abs(new.data_ptr() - shadow.data_ptr()) < span:
            raise InvalidArgument("new and shadow overlap in memory: pass two separate tensors")
        least = on_gpu_of(np.array([threshold], np.int32), new, np.int32)[0] if threshold else None
        packed = self._codec.delta_pack(new, shadow, block_elements=block_elements, threshold=least)
        entries, payload = _fetched(packed)
        first, second = (one & _MASK64 for one in packed.digest.tolist())
        return Delta(new.numel(), block_elements, entries, payload, (first, second))

    def delta_apply(self, weights: Any, delta: Delta, *, undo: bool) -> None:
        """Check all of the delta on the host, then change the weights on the device."""
        _check(delta, weights)
        bad_block = self._codec.delta_apply(
            weights, *_sent(delta, weights), block_elements=delta.block_elements, undo=undo
        )
        refused = int(bad_block)
        check(refused == -1, f"the device refuses block {refused} of a sound delta")

    def topk_threshold(self, new: Any, shadow: Any, *, budget: int) -> int:
        """Count on the device."""
        return int(self._codec.topk_threshold(new, shadow, budget=budget))

    def topk_unpack(
        self, base: Any, delta: Delta
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint16]]:
        """Check all of the delta on the host, then list what it changes."""
        _check(delta, base)
        listed = self._codec.topk_unpack(
            base,
            *_sent(delta, base),
            block_elements=delta.block_elements,
            capacity=delta.changed,
        )
        check(int(listed.errors) == -1, "the device refuses a block of a sound delta")
        positions: npt.NDArray[np.int64] = listed.positions.cpu().numpy()
        return positions, listed.values.cpu().numpy().view(np.uint16)

    def digest(self, bits: Any, *, first_index: int, seed: int) -> tuple[int, int]:
        """Add up on the device."""
        sums = self._codec.digest(bits, first_index=first_index, seed=seed).tolist()
        return sums[0] & _MASK64, sums[1] & _MASK64


def gpu_backend(tensor: Any) -> GpuBackend:
    """Return the back end for the GPU that `tensor` is on."""
    return GpuBackend(codec_of(tensor.device.index))


def _check(delta: Delta, tensor: Any) -> None:
    """Refuse a delta that is not sound, or not for as many elements."""
    if delta.count != tensor.numel():
        raise InvalidArgument(
            f"the delta is for {delta.count} elements, and the tensor has {tensor.numel()}"
        )
    _core.delta_check(
        count=delta.count,
        block_elements=delta.block_elements,
        entries=delta.entries,
        payload=delta.payload,
    )


def _fetched(packed: PackedBlocks) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint32]]:
    """Return the table, and the payload in its order."""
    words = int(packed.words)
    check(words <= packed.arena.numel(), "a block was deferred although the arena fits any delta")
    entries = packed.entries.cpu().numpy().view(np.uint64)
    offsets = packed.offsets.cpu().numpy()
    arena = packed.arena[:words].cpu().numpy().view(np.uint32)
    sizes = (entries >> np.uint64(44)).astype(np.int64)
    payload = np.empty(words, np.uint32)
    at = 0
    for size, offset in zip(sizes.tolist(), offsets.tolist(), strict=True):
        payload[at : at + size] = arena[offset : offset + size]
        at += size
    return entries, payload


def _sent(delta: Delta, like: Any) -> tuple[Any, Any, Any]:
    """Return table, offsets and payload on the device of `like`."""
    sizes = (delta.entries >> np.uint64(44)).astype(np.int64)
    offsets = np.cumsum(sizes) - sizes
    return (
        on_gpu_of(delta.entries, like, np.int64),
        on_gpu_of(offsets, like, np.int64),
        on_gpu_of(delta.payload, like, np.int32),
    )
