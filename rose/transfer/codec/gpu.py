"""The codec on tensors of a GPU.

A `Delta` lies in pinned host memory, so a call that returns a delta waits for the stream. Deltas
are merged on the host.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rose import _core
from rose.errors import CorruptData, InternalError, InvalidArgument, check
from rose.kernels.blocks import DEFERRED, PackedBlocks
from rose.kernels.gpu import on_gpu_of, on_host
from rose.kernels.streams import on_stream
from rose.transfer.codec.backend import AGE_LIMIT, about, check_all
from rose.transfer.codec.box import Box
from rose.transfer.codec.delta import Delta
from rose.units import ceil_div

if TYPE_CHECKING:  # Triton is an optional package.
    from rose.kernels.embedded import EmbeddedCodec
    from rose.kernels.triton_codec import TritonCodec

_MASK64 = (1 << 64) - 1


class GpuBackend:
    """The embedded CUDA kernels, or the Triton twins in a build without them.

    All work is queued on one stream. A call waits for that stream if it returns a host value or
    applies a delta that is not marked as checked; other calls wait for nothing. Packing by the
    embedded kernels temporarily takes half a byte per element, and with ages or by the Triton twins
    as much memory as the weights. If a dense delta does not fit, its later blocks are packed by
    another launch.
    """

    def __init__(self, codec: "EmbeddedCodec | TritonCodec", stream: Any = None) -> None:
        """Compute with `codec` on `stream`, by default torch's current stream."""
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
            least = _least(threshold, new)

            def pack(bases: Any, **room: int) -> PackedBlocks:
                return self._codec.delta_pack(
                    new,
                    shadow,
                    block_elements=block_elements,
                    threshold=least,
                    ages=ages,
                    age_limit=age_limit,
                    base_digest=bases[0],
                    **room,
                )

            bases = self._bases([shadow], [base_digest])
            return _packed(pack, [new], bases, block_elements)[0]

    def delta_pack_all(
        self,
        new: Sequence[Any],
        shadow: Sequence[Any],
        *,
        block_elements: int,
        base_digests: Sequence[tuple[int, int] | None],
        threads: int = 1,  # noqa: ARG002 - the device has its own
    ) -> list[Delta]:
        """Pack tensors of one GPU together, then copy all deltas to the host at once.

        The deltas share one array in pinned memory.
        """
        for one, other in zip(new, shadow, strict=True):
            _check_apart(one, other)
        with on_stream(self._stream, new[0].device):

            def pack(bases: Any, **room: int) -> PackedBlocks:
                return self._codec.delta_pack_all(
                    new, shadow, block_elements=block_elements, base_digests=bases, **room
                )

            return _packed(pack, new, self._bases(shadow, base_digests), block_elements)

    def _bases(self, shadow: Sequence[Any], known: Sequence[tuple[int, int] | None]) -> Any:
        """Return the shadows' digests, (tensors, 2) on the device; unknown digests are computed."""
        if not any(known):
            return self._codec.digest_all(shadow)
        given = np.array([one or (0, 0) for one in known], np.uint64)
        bases = on_gpu_of(shadow[0], given.reshape(-1))[0].view(-1, 2)
        unknown = [at for at, one in enumerate(known) if one is None]
        if unknown:
            found = self._codec.digest_all([shadow[at] for at in unknown])
            for at, pair in zip(unknown, found, strict=True):
                bases[at] = pair
        return bases

    def delta_apply(self, weights: Any, delta: Delta, *, undo: bool, verify: bool = False) -> None:
        """Apply on the device, and wait until each block is checked.

        A delta that is marked as checked is queued without a wait, except with `verify`: then the
        call waits for the digests.
        """
        self.delta_apply_all([weights], [delta], [""], undo=undo, verify=verify)

    def delta_apply_all(
        self,
        weights: Sequence[Any],
        deltas: Sequence[Delta],
        names: Sequence[str],
        *,
        undo: bool,
        verify: bool = False,
    ) -> None:
        """Apply deltas to tensors of one GPU, all or none, with one copy.

        With `verify`, the embedded kernels measure how the digest of each tensor changes. If a
        delta states another change, all deltas are undone. The Triton twins digest the weights
        first.
        """
        for one, delta, name in zip(weights, deltas, names, strict=True):
            with about(name):
                _check_size(delta, one)
        needs_check = not all(delta.is_checked for delta in deltas)
        has_digest = verify and self._codec.checks_deltas
        if needs_check and not self._codec.checks_deltas:
            check_all(deltas, names)
        if verify and not has_digest:
            self._verify(weights, deltas, names, undo=undo)
        with on_stream(self._stream, weights[0].device):
            tables = _sent(deltas, weights[0])
            blocks = [delta.block_elements for delta in deltas]
            lowest, sums = self._codec.delta_apply_all(
                weights, tables, blocks, undo=undo, has_digest=has_digest
            )
            bad = -1 if lowest is None or not needs_check else int(lowest)
            wrong = None if sums is None else _first_wrong(_pairs(sums), deltas, undo=undo)
            if bad == -1 and wrong is None:
                return
            # The sound blocks are applied. Undoing restores them, whatever the bad blocks contain.
            self._codec.delta_apply_all(weights, tables, blocks, undo=not undo)
        if wrong is not None and bad == -1:
            with about(names[wrong]):
                raise CorruptData(f"the weights are not {_start(undo=undo)}: nothing was changed")
        check_all(deltas, names)  # raises, with the reason
        raise InternalError(f"the device refuses block {bad} of a sound delta")

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
        """Return the lowest threshold for change sizes that sends at most `budget` elements."""
        with on_stream(self._stream, new.device):
            least = self._codec.topk_threshold(
                new, shadow, budget=budget, ages=ages, age_limit=age_limit
            )
            return int(least)

    def topk_unpack(
        self, base: Any, delta: Delta
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
        """Check each block of a delta, and list its changes."""
        _check_size(delta, base)
        changed = delta.changed_by_block.astype(np.int64)
        total = int(changed.sum())
        if total > delta.count or not self._codec.checks_deltas:
            _core.delta_check(delta)
        # The number of changes before each block, then -1: no bad block yet.
        numbers = np.append(np.cumsum(changed) - changed, -1)
        with on_stream(self._stream, base.device):
            entries, offsets, there, payload = _sent([delta], base, [numbers])[0]
            positions, values = self._codec.topk_unpack(
                base,
                entries,
                offsets,
                payload,
                firsts=there[:-1],
                changed=total,
                bad_block=there[-1],
                block_elements=delta.block_elements,
            )
            bad = int(there[-1])
            if bad == -1:
                return positions.cpu().numpy(), values.cpu().numpy().view(f"u{delta.width // 8}")
        _core.delta_check(delta)  # raises, with the reason
        raise InternalError(f"the device refuses block {bad} of a sound delta")

    def digest(self, bits: Any, *, threads: int = 1) -> tuple[int, int]:  # noqa: ARG002
        """Return the digest, computed on the device."""
        with on_stream(self._stream, bits.device):
            return _pairs(self._codec.digest(bits))[0]

    def _verify(
        self, weights: Sequence[Any], deltas: Sequence[Delta], names: Sequence[str], *, undo: bool
    ) -> None:
        """Refuse weights that are not the bases of the deltas, or with `undo` their results."""
        with on_stream(self._stream, weights[0].device):
            held = _pairs(self._codec.digest_all(weights))
        for one, delta, name in zip(held, deltas, names, strict=True):
            with about(name):
                if one != (delta.digest if undo else delta.base_digest):
                    raise CorruptData(
                        f"the weights are not {_start(undo=undo)}: nothing was changed"
                    )


def _packed(
    pack: Callable[..., PackedBlocks], tensors: Sequence[Any], bases: Any, block_elements: int
) -> list[Delta]:
    """Pack tensors together, and return their deltas.

    Args:
        pack: function that packs the tensors; it takes the digests of their shadows, and the room
            for the payload.
        tensors: the fresh elements.
        bases: (tensors, 2) int64, the digests of the shadows.
        block_elements: elements of a block.
    """
    packed = pack(bases)
    entries, payload = _fetched(packed)
    missing = int(packed.words) - len(payload)
    if missing:
        # The shadows of the first blocks are up to date, so only the deferred blocks have changes.
        packed = pack(packed.digest.view(-1, 2), arena_words=missing)
        late, rest = _fetched(packed)
        check(len(rest) == missing, "a block was deferred although the arena fits the delta")
        entries = np.where(entries & np.uint64(0xF) == DEFERRED, late, entries)
        payload = np.concatenate([payload, rest])
    deltas = []
    for one, base, after in zip(tensors, _pairs(bases), _pairs(packed.digest), strict=True):
        mine = entries[: ceil_div(one.numel(), block_elements)]
        size = int(_sizes(mine).sum())
        width = 8 * one.element_size()
        deltas.append(Delta(one.numel(), block_elements, width, mine, payload[:size], base, after))
        entries, payload = entries[len(mine) :], payload[size:]
    return deltas


def _fetched(packed: PackedBlocks) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint32]]:
    """Copy the table and the payload of the blocks that are not deferred to the host."""
    table, words = 2 * packed.blocks, int(packed.words)
    if words > packed.arena.numel():  # deferred blocks have no words in the table
        words = int(_sizes(on_host(packed.row[:table]).view(np.uint64)).sum())
    row = on_host(packed.row[: table + words])
    return row[:table].view(np.uint64), row[table:].view(np.uint32)


def _start(*, undo: bool) -> str:
    """Return what the weights must be before a delta is applied or undone."""
    return "the result of the delta" if undo else "the base of the delta"


def _first_wrong(
    changes: Sequence[tuple[int, int]], deltas: Sequence[Delta], *, undo: bool
) -> int | None:
    """Return the index of the first delta whose stated digests contradict the measured change."""
    for at, (change, delta) in enumerate(zip(changes, deltas, strict=True)):
        before, after = delta.base_digest, delta.digest
        if undo:
            before, after = after, before
        if any(
            (old + by - new) & _MASK64 for old, by, new in zip(before, change, after, strict=True)
        ):
            return at
    return None


def _check_apart(new: Any, shadow: Any) -> None:
    if Box.of(new).meets(Box.of(shadow)):
        raise InvalidArgument("new and shadow overlap in memory: pass two separate tensors")


def _check_size(delta: Delta, tensor: Any) -> None:
    if (delta.count, delta.width) != (tensor.numel(), 8 * tensor.element_size()):
        raise InvalidArgument(
            f"the delta is for {delta.count} elements of {delta.width} bits, and the tensor has "
            f"{tensor.numel()} elements of {8 * tensor.element_size()} bits"
        )


def _least(threshold: int, like: Any) -> Any:
    """Return the threshold as a number on the device; None for 0, which sends everything."""
    if threshold == 0:
        return None
    return on_gpu_of(like, np.array([threshold], np.int32))[0][0]


def _pairs(sums: Any) -> list[tuple[int, int]]:
    """Copy digests to the host."""
    return [(first & _MASK64, second & _MASK64) for first, second in sums.view(-1, 2).tolist()]


def _sizes(entries: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Return the number of words of each block."""
    sizes: npt.NDArray[np.int64] = (entries >> np.uint64(44)).astype(np.int64)
    return sizes


def _sent(
    deltas: Sequence[Delta], like: Any, numbers: Sequence[npt.NDArray[np.int64]] = ()
) -> list[list[Any]]:
    """Return table, offsets, `numbers` and payload of each delta, on the device of `like`.

    One copy sends them all.

    Raises:
        CorruptData: the block sizes of a table do not add up to the size of its payload.
    """
    offsets = []
    for delta in deltas:
        sizes = _sizes(delta.entries)
        ends = np.cumsum(sizes)
        if len(delta.payload) != (ends[-1] if len(ends) else 0):
            _core.delta_check(delta)
        offsets.append(ends - sizes)
    entries, payloads = [one.entries for one in deltas], [one.payload for one in deltas]
    rows = on_gpu_of(like, *entries, *offsets, *numbers, *payloads)
    count = len(deltas)
    return [rows[at::count] for at in range(count)]
