"""Methods of other projects to update an engine's ranks, from their published descriptions.

Each method packs one tensor at a time, on one thread per core, and sends the canonical tensor to
every rank, which takes its part. Before a payload is applied its checksum is verified, if the
original method has one.
"""

import hashlib
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from bench.codecs import compress, decompress, gap_encode, read_gaps
from rose.errors import CorruptData, InvalidArgument
from rose.transfer.codec.operations import digest

Bits = npt.NDArray[np.uint16]
Frame = bytes | memoryview

_SUM_BYTES: Final = 16
_HIDDEN: Final = 1024
_FFN: Final = 2816
_KEYS: Final = 256
# Tensors of a layer: q, k, v, o, gate, up, down, and two norms.
_LAYER: Final = (
    *(_HIDDEN * _HIDDEN, _HIDDEN * _KEYS, _HIDDEN * _KEYS, _HIDDEN * _HIDDEN),
    *(3 * (_HIDDEN * _FFN,)),
    *(2 * (_HIDDEN,)),
)


@dataclass(frozen=True, slots=True)
class Layout:
    """Consecutive tensors in the trainer's row, each divided evenly among ranks.

    Args:
        counts: elements of each tensor; a multiple of `ranks`.
        ranks: ranks of the engine. A rank's own row has its part of each tensor, in the same order.
    """

    counts: tuple[int, ...]
    ranks: int

    def __post_init__(self) -> None:
        if any(count % self.ranks for count in self.counts):
            raise InvalidArgument(
                f"counts must be multiples of the {self.ranks} ranks, got {self.counts}"
            )

    @classmethod
    def like_a_transformer(cls, elements: int, *, ranks: int) -> "Layout":
        """Return layers of the usual tensors, with at least this many elements in total."""
        layers = -(-elements // sum(_LAYER))
        return cls(_LAYER * layers, ranks)

    @property
    def count(self) -> int:
        return sum(self.counts)

    def tensor(self, index: int) -> slice:
        """Return the position of a tensor in the trainer's row."""
        first = sum(self.counts[:index])
        return slice(first, first + self.counts[index])

    def part(self, index: int, rank: int) -> slice:
        """Return the elements of a tensor that a rank holds."""
        size = self.counts[index] // self.ranks
        return slice(rank * size, (rank + 1) * size)

    def held(self, index: int) -> slice:
        """Return the position of any rank's part of a tensor in its own row."""
        where = self.tensor(index)
        return slice(where.start // self.ranks, where.stop // self.ranks)

    def row_of(self, rank: int, canonical: Bits) -> Bits:
        """Return a rank's part of a trainer's row."""
        tensors = (canonical[self.tensor(index)] for index in range(len(self.counts)))
        parts = (tensor[self.part(index, rank)] for index, tensor in enumerate(tensors))
        return np.concatenate(list(parts))


class RefitPeer(Protocol):
    """A method to update one tensor. It has no state, and any thread may call it.

    Args:
        name: name of the method in rows.
        title: description, for the row's peer.
    """

    name: str
    title: str

    def pack(self, new: Bits, shadow: Bits) -> Frame:
        """Return the payload of a tensor, and update the shadow to the receivers' values."""
        ...

    def apply(self, frame: Frame, count: int, part: slice, held: Bits) -> None:
        """Update a rank's part of a tensor of `count` elements.

        Raises:
            CorruptData: the frame or its result differs from the packed one.
        """
        ...


class DenseBroadcast:
    """All bf16 bytes of every tensor to every rank, as frameworks do by default. No shadow."""

    name = "dense_broadcast"
    title = "every bf16 byte to every rank"

    def pack(self, new: Bits, shadow: Bits) -> Frame:
        return new.data.cast("B")

    def apply(self, frame: Frame, count: int, part: slice, held: Bits) -> None:
        held[:] = np.frombuffer(frame, np.uint16, count)[part]


class NemoLike:
    """NeMo-RL's remote sparse refit: u16 gaps and XOR, zstd-1, BLAKE2b, every entry to every rank.

    There is no plan of the elements that a rank needs: a rank scatters the canonical entries into a
    tensor of the checkpoint's shape, and takes its part.
    """

    name = "nemo_like"
    title = "u16 gaps, XOR, zstd-1, BLAKE2b, dense scatter (as NeMo-RL)"

    def pack(self, new: Bits, shadow: Bits) -> Frame:
        payload = gap_encode(new, shadow)
        shadow[:] = new
        return _sum(payload) + payload

    def apply(self, frame: Frame, count: int, part: slice, held: Bits) -> None:
        payload = bytes(frame[_SUM_BYTES:])
        if bytes(frame[:_SUM_BYTES]) != _sum(payload):
            raise CorruptData("a payload differs from the packed one")
        positions, patches = read_gaps(payload)
        dense = np.zeros(count, np.uint16)
        dense[positions] = patches
        held ^= dense[part]


class VerlLike:
    """verl's sharded delta: int32 positions and bf16 values, broadcast; NaN for unchanged elements.

    Ranks make a tensor of the checkpoint's shape, NaN except at entries, and copy the other values.
    """

    name = "verl_like"
    title = "int32 positions, bf16 values, a dense tensor of NaN (as verl)"

    def pack(self, new: Bits, shadow: Bits) -> Frame:
        torch = _torch()
        fresh = torch.from_numpy(new.view(np.int16))
        known = torch.from_numpy(shadow.view(np.int16))
        positions = torch.ne(fresh, known).nonzero().view(-1)
        values = fresh[positions]
        known[positions] = values
        return bytes(positions.to(torch.int32).numpy().tobytes() + values.numpy().tobytes())

    def apply(self, frame: Frame, count: int, part: slice, held: Bits) -> None:
        torch = _torch()
        changed = len(frame) // 6
        positions = np.frombuffer(frame, np.int32, changed)
        values = np.frombuffer(frame, np.int16, changed, 4 * changed)
        dense = torch.full((count,), torch.nan, dtype=torch.bfloat16)
        # Copies, because torch needs writable memory.
        where, become = torch.from_numpy(positions.astype(np.int64)), torch.from_numpy(+values)
        dense[where] = become.view(torch.bfloat16)
        mine = torch.from_numpy(held.view(np.int16)).view(torch.bfloat16)
        patch = dense[part]
        mine.copy_(torch.where(patch.isnan(), mine, patch))


class SlimeLike:
    """slime's delta: the XOR of all elements, zstd-1, and a hash per tensor.

    The hash is rose's own digest, about as fast as the original's xxh3. It covers the XOR, which is
    as long as the tensor and complete at every rank.
    """

    name = "slime_like"
    title = "dense XOR, zstd-1, a hash of each tensor (as slime)"

    def pack(self, new: Bits, shadow: Bits) -> Frame:
        patch = np.bitwise_xor(new, shadow)
        shadow[:] = new
        return _digest(patch) + compress(patch.data)

    def apply(self, frame: Frame, count: int, part: slice, held: Bits) -> None:
        patch = np.frombuffer(decompress(frame[_SUM_BYTES:]), np.uint16, count)
        if bytes(frame[:_SUM_BYTES]) != _digest(patch):
            raise CorruptData("a patch differs from the packed one")
        held ^= patch[part]


REFIT_PEERS: Final[tuple[RefitPeer, ...]] = (
    DenseBroadcast(),
    NemoLike(),
    VerlLike(),
    SlimeLike(),
)


def _sum(payload: bytes) -> bytes:
    return hashlib.blake2b(payload, digest_size=_SUM_BYTES).digest()


def _digest(bits: Bits) -> bytes:
    return b"".join(half.to_bytes(8, "little") for half in digest(bits))


@cache
def _torch() -> Any:
    """Return torch, whose import takes a second."""
    import torch

    torch.set_num_threads(1)  # the caller's threads are used instead
    return torch
