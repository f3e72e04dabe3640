"""The placement of a lease's tensors on the device, and the copies to the device."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from rose._core import CudaStream
from rose.errors import InvalidArgument
from rose.memory import DeviceArray, KVArray, KVSpace, pack_bins

Bytes: TypeAlias = "npt.NDArray[np.uint8]"
# Longest wait for the copies in a stream. It is reached only if the stream hangs.
_COPY_MS: Final = 60_000.0


class HostUpload:
    """Copies within host memory; NumPy releases the GIL during a copy."""

    def copy(self, to: KVArray, host: Bytes) -> None:
        """Copy `host` to `to`."""
        if isinstance(to, DeviceArray):
            raise InvalidArgument("HostUpload cannot copy to a DeviceArray: use StreamUpload")
        np.copyto(to, host)

    def wait(self) -> None:
        """Do nothing: each `copy` is complete when it returns."""


class StreamUpload:
    """Enqueues copies in a CUDA stream; page-locked host memory is fastest.

    The host bytes must not change until `wait` returns. During `wait` no closed gate may block the
    stream.
    """

    def __init__(self, stream: CudaStream) -> None:
        self._stream = stream

    def copy(self, to: KVArray, host: Bytes) -> None:
        """Enqueue a copy of `host` to `to`."""
        if not isinstance(to, DeviceArray):
            raise InvalidArgument("StreamUpload can only copy to a DeviceArray: use HostUpload")
        self._stream.copy_from_host(to.address, host)

    def wait(self) -> None:
        """Wait for the stream.

        Raises:
            DeadlineExceeded: the stream is still busy after a minute.
        """
        self._stream.wait(timeout_ms=_COPY_MS)


Upload: TypeAlias = HostUpload | StreamUpload
"""Copies host bytes into the pool."""


@dataclass(frozen=True, slots=True)
class TensorRange:
    """Bytes `start` to `stop` of one tensor."""

    tensor: int
    start: int
    stop: int


class WeightBins:
    """Tensors on the host, packed into bins of slabs; some bins are also on the device.

    A bin is on the device if it has a run of slabs, and is filled if all its pieces were copied.
    The caller must guard all calls by a lock, except `fill`. During `fill` the slabs must be
    pinned, so that no bin is dropped.

    Args:
        kv: the borrower's KV space.
        rows: contiguous bytes of each tensor, (n,) uint8.
        upload: object that copies bytes into the pool.
        piece_bytes: largest size of one copy.
    """

    def __init__(
        self, kv: KVSpace, rows: Sequence[Bytes], *, upload: Upload, piece_bytes: int
    ) -> None:
        sizes = [row.nbytes for row in rows]
        self._kv = kv
        self._rows = rows
        self._upload = upload
        self._piece_bytes = piece_bytes
        self._bins = pack_bins(sizes, kv.slab_bytes)
        self._place_of = {
            place.tensor: (at, place.offset)
            for at, one in enumerate(self._bins)
            for place in one.places
        }
        self._starts = np.cumsum([0, *sizes])
        self._runs: dict[int, range] = {}
        self._windows: dict[int, KVArray] = {}
        self._missing: deque[TensorRange] = deque()

    @property
    def size_bytes(self) -> int:
        """Total size of all rows."""
        return int(self._starts[-1])

    @property
    def slabs_max(self) -> int:
        """Number of slabs that all bins need."""
        return sum(one.slabs for one in self._bins)

    @property
    def is_filled(self) -> bool:
        """True if all pieces of the bins on the device were copied."""
        return not self._missing

    def absent(self) -> dict[int, int]:
        """Return the bins that are not on the device: bin → number of slabs."""
        return {at: one.slabs for at, one in enumerate(self._bins) if at not in self._runs}

    def put(self, at: int, run: range) -> None:
        """Place bin `at` in the slabs `run`. All its pieces must then be copied by `fill`."""
        self._runs[at] = run
        self._windows[at] = self._kv.slab_window(run)
        for place in self._bins[at].places:
            size = self._rows[place.tensor].nbytes
            for start in range(0, size, self._piece_bytes):
                stop = min(start + self._piece_bytes, size)
                self._missing.append(TensorRange(place.tensor, start, stop))

    def fill(self, budget_bytes: int) -> None:
        """Copy missing pieces, at least one, until `budget_bytes` are copied."""
        while self._missing and budget_bytes > 0:
            piece = self._missing[0]
            self._copy(piece)
            # Removed after the copy: if the copy fails, the piece's bin counts as half filled.
            self._missing.popleft()
            budget_bytes -= piece.stop - piece.start

    def write(self, start: int, stop: int) -> None:
        """Copy bytes `start` to `stop`, counted over all rows, to bins on the device."""
        for piece in self._spans(start, stop):
            if self._place_of[piece.tensor][0] in self._runs:
                self._copy(piece)

    def slabs_of(self, start: int, stop: int) -> frozenset[int]:
        """Return the slab ids of all bins on the device that hold bytes in `start` to `stop`."""
        bins = {self._place_of[piece.tensor][0] for piece in self._spans(start, stop)}
        return frozenset(slab for at in bins & self._runs.keys() for slab in self._runs[at])

    def drop(self, leaving: frozenset[int], *, keep_bytes: int) -> list[range]:
        """Drop bins that touch `leaving`, are half filled, or exceed `keep_bytes` in total.

        Returns:
            Runs of slab ids of the dropped bins, which the caller must free.
        """
        half_filled = {self._place_of[piece.tensor][0] for piece in self._missing}
        self._missing.clear()
        dropped: list[range] = []
        for at, run in list(self._runs.items()):
            size = len(run) * self._kv.slab_bytes
            if at in half_filled or size > keep_bytes or not leaving.isdisjoint(run):
                del self._runs[at], self._windows[at]
                dropped.append(run)
            else:
                keep_bytes -= size
        return dropped

    def window_of(self, tensor: int) -> KVArray:
        """Return the bytes of a tensor whose bin is on the device, (n,) uint8."""
        at, offset = self._place_of[tensor]
        return _part(self._windows[at], offset, offset + self._rows[tensor].nbytes)

    def _copy(self, piece: TensorRange) -> None:
        to = _part(self.window_of(piece.tensor), piece.start, piece.stop)
        self._upload.copy(to, self._rows[piece.tensor][piece.start : piece.stop])

    def _spans(self, start: int, stop: int) -> Iterator[TensorRange]:
        tensor = int(np.searchsorted(self._starts, start, side="right")) - 1
        while start < stop:
            first = int(self._starts[tensor])
            last = min(stop, int(self._starts[tensor + 1]))
            yield TensorRange(tensor, start - first, last - first)
            start, tensor = last, tensor + 1


def _part(array: KVArray, start: int, stop: int) -> KVArray:
    return array.part(start, stop) if isinstance(array, DeviceArray) else array[start:stop]
