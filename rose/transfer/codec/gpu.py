"""The codec on tensors of a GPU.

A `Delta` is in host memory, so returning one waits for the stream; it lies in pinned memory.
Deltas are merged on the host.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rose import _core
from rose.errors import CorruptData, InternalError, InvalidArgument, check
from rose.kernels.blocks import PackedBlocks
from rose.kernels.gpu import on_gpu_of, on_host
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

    All work is queued on one stream. A call waits for that stream if it returns a host value or
    applies a delta that nobody has checked; the others wait for nothing. Packing temporarily takes
    as much memory as the weights.
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
            base = None if base_digest else self._digest(shadow)
            packed = self._codec.delta_pack(
                new,
                shadow,
                block_elements=block_elements,
                threshold=_least(threshold, new),
                ages=ages,
                age_limit=age_limit,
            )
            entries, payload = self._fetched(packed)
            width = 8 * new.element_size()
            return Delta(
                new.numel(),
                block_elements,
                width,
                entries,
                payload,
                base_digest or _pair(base),
                _pair(packed.digest),
            )

    def delta_apply(self, weights: Any, delta: Delta, *, undo: bool, verify: bool = False) -> None:
        """Apply on the device, which checks each block, and wait for the result.

        A delta that is checked already is queued without a wait. With `verify`, the digest of the
        weights is waited for first.
        """
        _check_size(delta, weights)
        if not (delta.is_checked or self._codec.checks_deltas):
            _core.delta_check(delta)
        if verify:
            self._verify(weights, delta, undo=undo)
        with on_stream(self._stream, weights.device):
            table = _sent(delta, weights)
            size = delta.block_elements
            bad = self._codec.delta_apply(weights, *table, block_elements=size, undo=undo)
            if delta.is_checked or bad is None or int(bad) == -1:
                return
            # Sound blocks are changed; this restores them, whatever the others hold.
            self._codec.delta_apply(weights, *table, block_elements=size, undo=not undo)
        _core.delta_check(delta)  # raises, with the reason
        raise InternalError(f"the device refuses block {int(bad)} of a sound delta")

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
        _check_size(delta, base)
        _core.delta_check(delta)
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

    def _fetched(
        self, packed: PackedBlocks
    ) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint32]]:
        """Return the table, and the payload in the table's order, in pinned host memory."""
        words = int(packed.words)
        fits = words <= packed.arena.numel()
        check(fits, "a block was deferred although the arena fits any delta")
        row = on_host(self._codec.gathered(packed, words))
        table = 2 * packed.entries.numel()
        return row[:table].view(np.uint64), row[table:].view(np.uint32)

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


def _check_size(delta: Delta, tensor: Any) -> None:
    if (delta.count, delta.width) != (tensor.numel(), 8 * tensor.element_size()):
        raise InvalidArgument(
            f"the delta is for {delta.count} elements of {delta.width} bits, and the tensor has "
            f"{tensor.numel()} of {8 * tensor.element_size()}"
        )


def _least(threshold: int, like: Any) -> Any:
    """Return a threshold for the device; None for 0, which sends everything."""
    if threshold == 0:
        return None
    return on_gpu_of(like, np.array([threshold], np.int32))[0][0]


def _pair(sums: Any) -> tuple[int, int]:
    """Copy a digest to the host."""
    first, second = sums.tolist()
    return first & _MASK64, second & _MASK64


def _sizes(delta: Delta) -> npt.NDArray[np.int64]:
    """Return the number of words of each block."""
    sizes: npt.NDArray[np.int64] = (delta.entries >> np.uint64(44)).astype(np.int64)
    return sizes


def _sent(delta: Delta, like: Any) -> list[Any]:
    """Return table, offsets and payload on the device of `like`.

    Raises:
        CorruptData: the table has another number of words than the payload.
    """
    sizes = _sizes(delta)
    ends = np.cumsum(sizes)
    if len(delta.payload) != (ends[-1] if len(ends) else 0):
        _core.delta_check(delta)
    return on_gpu_of(like, delta.entries, ends - sizes, delta.payload)
