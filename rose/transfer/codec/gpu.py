"""The codec on tensors of a GPU.

A `Delta` is in host memory, so returning one waits for the stream. Deltas are merged on the host.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rose import _core
from rose.errors import CorruptData, InvalidArgument, check
from rose.kernels.blocks import PackedBlocks
from rose.kernels.gpu import on_gpu_of
from rose.kernels.streams import on_stream
from rose.transfer.codec.backend import AGE_LIMIT
from rose.transfer.codec.box import Box
from rose.transfer.codec.delta import Delta

if TYPE_CHECKING:  # Triton is an optional package.
    from rose.kernels.embedded import EmbeddedCodec
    from rose.kernels.triton_codec import TritonCodec

_MASK64 = (1 << 64) - 1


class GpuBackend:
    """The embedded CUDA kernels, or the Triton twins where there are none.

    All work is queued on one stream. A call that returns a host value waits for that stream; the
    others wait for nothing. Packing temporarily takes as much memory as the weights.
    """

    def __init__(self, codec: "EmbeddedCodec | TritonCodec", stream: Any = None) -> None:
        """Compute with `codec` on `stream`, by default torch's current one; see `stream_on`."""
        self._codec = codec
        self._stream = stream

    def delta_pack(
        self,
        new: Any,
        shadow: Any,
        *,
        block_elements: int,
        threshold: int,
        ages: Any = None,
        age_limit: int = AGE_LIMIT,
        threads: int = 1,  # noqa: ARG002 - the device has its own
        base_digest: tuple[int, int] | None = None,
    ) -> Delta:
        """Pack on the device, and copy the result to the host."""
        _check_apart(new, shadow)
        with on_stream(self._stream, new.device):
            if base_digest is None:
                base = self._digest(shadow)
            else:
                base = on_gpu_of(np.array(base_digest, np.uint64), shadow, np.int64)
            packed = self._codec.delta_pack(
                new,
                shadow,
                block_elements=block_elements,
                threshold=_least(threshold, new),
                ages=ages,
                age_limit=age_limit,
                base_digest=base,
            )
            entries, payload = _fetched(packed)
            width = 8 * new.element_size()
            return Delta(
                new.numel(),
                block_elements,
                width,
                entries,
                payload,
                _pair(base),
                _pair(packed.digest),
            )

    def delta_apply(self, weights: Any, delta: Delta, *, undo: bool, verify: bool = False) -> None:
        """Check the whole delta on the host, then queue the change without waiting for it.

        With `verify`, the digest of the weights is waited for first.
        """
        _check(delta, weights)
        if verify:
            self._verify(weights, delta, undo=undo)
        with on_stream(self._stream, weights.device):
            self._codec.delta_apply(
                weights, *_sent(delta, weights), block_elements=delta.block_elements, undo=undo
            )

    def topk_threshold(
        self,
        new: Any,
        shadow: Any,
        *,
        budget: int,
        ages: Any = None,
        age_limit: int = AGE_LIMIT,
        threads: int = 1,  # noqa: ARG002 - the device has its own
    ) -> int:
        """Return the threshold, counted on the device."""
        with on_stream(self._stream, new.device):
            least = self._codec.topk_threshold(
                new, shadow, budget=budget, ages=ages, age_limit=age_limit
            )
            return int(least)

    def topk_unpack(
        self, base: Any, delta: Delta
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
        """Check the whole delta on the host, then list its changes."""
        _check(delta, base)
        with on_stream(self._stream, base.device):
            positions, values = self._codec.topk_unpack(
                base, *_sent(delta, base), block_elements=delta.block_elements
            )
            return positions.cpu().numpy(), values.cpu().numpy().view(f"u{delta.width // 8}")

    def digest(
        self,
        bits: Any,
        *,
        first_index: int,
        seed: int,
        threads: int = 1,  # noqa: ARG002 - the device has its own
    ) -> tuple[int, int]:
        """Return the digest, computed on the device."""
        with on_stream(self._stream, bits.device):
            return _pair(self._digest(bits, first_index=first_index, seed=seed))

    def _digest(self, bits: Any, *, first_index: int = 0, seed: int = 0) -> Any:
        return self._codec.digest(bits, first_index=first_index, seed=seed)

    def _verify(self, weights: Any, delta: Delta, *, undo: bool) -> None:
        """Refuse weights whose digest is not that of the base, or with `undo` of the result."""
        held = self.digest(weights, first_index=0, seed=0)
        if held != (delta.digest if undo else delta.base_digest):
            what = "the result of the delta" if undo else "the base of the delta"
            raise CorruptData(f"the weights are not {what}: their digest differs")


def _check_apart(new: Any, shadow: Any) -> None:
    if Box.of(new).meets(Box.of(shadow)):
        raise InvalidArgument("new and shadow overlap in memory: pass two separate tensors")


def _check(delta: Delta, tensor: Any) -> None:
    """Refuse an unsound delta, and one for other elements."""
    if (delta.count, delta.width) != (tensor.numel(), 8 * tensor.element_size()):
        raise InvalidArgument(
            f"the delta is for {delta.count} elements of {delta.width} bits, and the tensor has "
            f"{tensor.numel()} of {8 * tensor.element_size()}"
        )
    _core.delta_check(delta)


def _least(threshold: int, like: Any) -> Any:
    """Return a threshold for the device; None for 0, which sends everything."""
    if threshold == 0:
        return None
    return on_gpu_of(np.array([threshold], np.int32), like, np.int32)[0]


def _pair(sums: Any) -> tuple[int, int]:
    """Copy a digest to the host."""
    first, second = sums.tolist()
    return first & _MASK64, second & _MASK64


def _sizes(delta: Delta) -> npt.NDArray[np.int64]:
    """Return the number of words of each block."""
    sizes: npt.NDArray[np.int64] = (delta.entries >> np.uint64(44)).astype(np.int64)
    return sizes


def _fetched(packed: PackedBlocks) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint32]]:
    """Return the table, and the payload in table order, on the host."""
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
    sizes = _sizes(delta)
    return (
        on_gpu_of(delta.entries, like, np.int64),
        on_gpu_of(np.cumsum(sizes) - sizes, like, np.int64),
        on_gpu_of(delta.payload, like, np.int32),
    )
