"""Where the tensors of a lease lie on the device, and the copies that bring them there."""

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
# How long a stream of copies may take; only bounds a hang.
_COPY_MS: Final = 60_000.0


class HostUpload:
    """Copies within the host's memory; the interpreter is not held meanwhile."""

    def copy(self, to: KVArray, host: Bytes) -> None:
        """Copy."""
        if isinstance(to, DeviceArray):
            raise InvalidArgument("bytes on a device are written by a stream: use StreamUpload")
        np.copyto(to, host)

    def wait(self) -> None:
        """Return: a copy is complete when it returns."""


class StreamUpload:
    """Puts copies into a stream of a GPU; page-locked bytes of the host arrive the fastest.

    The bytes must stay as they are until `wait` has returned, which no closed gate may hold up.
    """

    def __init__(self, stream: CudaStream) -> None:
        """Copy in the order of `stream`."""
        self._stream = stream

    def copy(self, to: KVArray, host: Bytes) -> None:
        """Enqueue."""
        if not isinstance(to, DeviceArray):
            raise InvalidArgument("bytes of the host are not written by a stream: use HostUpload")
        self._stream.copy_from_host(to.address, host)

    def wait(self) -> None:
        """Wait for the stream.

        Raises:
            DeadlineExceeded: it has work left after a minute.
        """
        self._stream.wait(timeout_ms=_COPY_MS)


Upload: TypeAlias = HostUpload | StreamUpload
"""Brings bytes of the host into the pool."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes `start` to `stop` of one tensor."""

    tensor: int
    start: int
    stop: int


class WeightBins:
    """Rows of bytes on the host, packed into bins of slabs, of which some are on the device.

    A bin is on the device when it has a run of slabs, and filled when no piece of it is missing.
    Locks are the caller's.

    Args:
        kv: the borrower's view of the pool.
        rows: one tensor's bytes each, contiguous.
        upload: copies them into the pool.
        piece_bytes: the most that one copy is made of.
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
        self._missing: deque[Piece] = deque()

    @property
    def size_bytes(self) -> int:
        """Of all rows."""
        return int(self._starts[-1])

    @property
    def slabs_max(self) -> int:
        """How many slabs all bins take."""
        return sum(one.slabs for one in self._bins)

    @property
    def is_filled(self) -> bool:
        """Whether no piece is missing in what is on the device."""
        return not self._missing

    def absent(self) -> dict[int, int]:
        """Return the bins that are not on the device, and how many slabs each takes."""
        return {at: one.slabs for at, one in enumerate(self._bins) if at not in self._runs}

    def put(self, at: int, run: range) -> None:
        """Let bin `at` lie in `run`; all of it is missing there."""
        self._runs[at] = run
        self._windows[at] = self._kv.slab_window(run)
        for place in self._bins[at].places:
            size = self._rows[place.tensor].nbytes
            for start in range(0, size, self._piece_bytes):
                stop = min(start + self._piece_bytes, size)
                self._missing.append(Piece(place.tensor, start, stop))

    def fill(self, budget_bytes: int) -> None:
        """Copy missing pieces, at least one, until `budget_bytes` are copied."""
        while self._missing and budget_bytes > 0:
            piece = self._missing[0]
            self._copy(piece)
            self._missing.popleft()  # Not before: a copy that failed leaves its bin half filled.
            budget_bytes -= piece.stop - piece.start

    def write(self, start: int, stop: int) -> None:
        """Copy bytes `start` to `stop`, counted over all rows, to where they are on the device."""
        for piece in self._spans(start, stop):
            if self._place_of[piece.tensor][0] in self._runs:
                self._copy(piece)

    def slabs_of(self, start: int, stop: int) -> frozenset[int]:
        """Return the slabs of the bins that bytes `start` to `stop` lie in."""
        bins = {self._place_of[piece.tensor][0] for piece in self._spans(start, stop)}
        return frozenset(slab for at in bins & self._runs.keys() for slab in self._runs[at])

    def drop(self, leaving: frozenset[int], *, keep_bytes: int) -> list[range]:
        """Forget the bins that lie in `leaving`, are half filled, or are too much to keep.

        Returns:
            Their runs, whose slabs are free now.
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
        """Return the bytes of a tensor on the device, where its bin must be."""
        at, offset = self._place_of[tensor]
        return _part(self._windows[at], offset, offset + self._rows[tensor].nbytes)

    def _copy(self, piece: Piece) -> None:
        to = _part(self.window_of(piece.tensor), piece.start, piece.stop)
        self._upload.copy(to, self._rows[piece.tensor][piece.start : piece.stop])

    def _spans(self, start: int, stop: int) -> Iterator[Piece]:
        tensor = int(np.searchsorted(self._starts, start, side="right")) - 1
        while start < stop:
            first = int(self._starts[tensor])
            last = min(stop, int(self._starts[tensor + 1]))
            yield Piece(tensor, start - first, last - first)
            start, tensor = last, tensor + 1


def _part(array: KVArray, start: int, stop: int) -> KVArray:
    return array.part(start, stop) if isinstance(array, DeviceArray) else array[start:stop]
