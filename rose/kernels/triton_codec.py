"""The delta codec in Triton and torch, for GPUs without an embedded fat binary.

It is plain rather than fast. Work is queued on torch's current stream.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch

from rose.errors import check
from rose.kernels.block_plan import GROUP_ELEMENTS, plan_to_write
from rose.kernels.blocks import AGE_MAX, PackedBlocks
from rose.kernels.change_key import DUE, change_keys
from rose.kernels.decode import decoded
from rose.kernels.digest import digest
from rose.kernels.encode import encode


class TritonCodec:
    """The operations of `rose.kernels.embedded.EmbeddedCodec`, on any GPU that Triton supports.

    Elements are int8, int16 or int32; strided tensors are copied. Deltas must have passed
    `delta_check`.
    """

    checks_deltas: Final = False

    def delta_pack(
        self,
        new: Any,
        shadow: Any,
        *,
        block_elements: int,
        threshold: Any = None,
        ages: Any = None,
        age_limit: int = AGE_MAX,
        base_digest: Any = None,  # noqa: ARG002 - all elements are digested
    ) -> PackedBlocks:
        """Pack the changes and update the shadow. Waits for the stream.

        Takes as much memory as the weights. On an error nothing is changed.
        """
        moved = torch.empty(new.numel(), dtype=new.dtype, device=new.device)
        aged = None if ages is None else _row(ages).view(torch.uint8)
        older = None if aged is None else torch.empty_like(aged)
        entries, payload = [moved[:0].long()], [moved[:0].int()]
        for part, difference, sent in _changes(new, shadow, threshold, ages, age_limit):
            plan = plan_to_write(sent, block_elements)
            entries.append(plan.entries)
            payload.append(encode(sent, plan, block_elements=block_elements))
            moved[part] = sent
            if aged is not None and older is not None:
                age = aged[part].clamp(max=AGE_MAX - 1) + 1
                older[part] = age * (sent != difference)
        moved += _row(shadow)
        table = torch.cat(entries)
        packed = PackedBlocks(_row_of(table, *payload), _ends_of(table), digest(moved))
        # These copies come last, because they allocate nothing and so cannot fail halfway.
        shadow.copy_(moved.view(shadow.shape))
        if older is not None:
            ages.view(torch.uint8).copy_(older.view(ages.shape))
        return packed

    def delta_pack_all(
        self,
        new: Sequence[Any],
        shadow: Sequence[Any],
        *,
        block_elements: int,
        base_digests: Any,  # noqa: ARG002 - all elements are digested
    ) -> PackedBlocks:
        """Pack several tensors, one after the other. Waits for the stream."""
        parts = [
            self.delta_pack(one, other, block_elements=block_elements)
            for one, other in zip(new, shadow, strict=True)
        ]
        table = torch.cat([one.entries for one in parts])
        return PackedBlocks(
            _row_of(table, *(one.arena for one in parts)),
            _ends_of(table),
            torch.cat([one.digest for one in parts]),
        )

    def delta_apply(
        self,
        weights: Any,
        entries: Any,
        offsets: Any,
        payload: Any,
        *,
        block_elements: int,
        undo: bool = False,
    ) -> None:
        """Apply or undo a delta, without waiting for the device."""
        row = _row(weights)
        for part, change in decoded(
            entries, offsets, payload, like=row, block_elements=block_elements
        ):
            row[part].sub_(change) if undo else row[part].add_(change)
        if not weights.is_contiguous():
            weights.copy_(row.view(weights.shape))

    def delta_apply_all(
        self,
        weights: Sequence[Any],
        tables: Sequence[Sequence[Any]],
        block_elements: Sequence[int],
        *,
        undo: bool = False,
        has_digest: bool = False,
    ) -> tuple[None, None]:
        """Apply or undo several deltas, one after the other, without waiting for the device.

        Returns:
            None for the lowest bad block and None for the digests: nothing is checked here.
        """
        check(not has_digest, "the Triton codec cannot compute digests while it applies deltas")
        for one, table, elements in zip(weights, tables, block_elements, strict=True):
            self.delta_apply(one, *table, block_elements=elements, undo=undo)
        return None, None

    def topk_threshold(
        self, new: Any, shadow: Any, *, budget: int, ages: Any = None, age_limit: int = AGE_MAX
    ) -> Any:
        """Return the smallest threshold >= 1 that at most `budget` changes reach, () int64.

        The elements must be bf16.
        """
        # One bin for unchanged elements, then one per key.
        bins = torch.zeros(DUE + 2, dtype=torch.int64, device=new.device)
        for _, keys in _keys(new, shadow, ages, age_limit):
            bins += torch.bincount(keys + 1, minlength=len(bins))
        # Number of changes that reach each key, from DUE - 1 down to 1. The number never falls on
        # the way, so the keys that too many changes reach are those below the threshold.
        reach = bins[2:].flip(0).cumsum(0)[1:]
        return 1 + (reach > budget).sum()

    def topk_unpack(
        self,
        base: Any,
        entries: Any,
        offsets: Any,
        payload: Any,
        *,
        block_elements: int,
        **_: Any,  # arguments that only the embedded kernels need
    ) -> tuple[Any, Any]:
        """Return positions and new bits of a delta's changes: (changed,) int64 and (changed,).

        Waits for the stream.
        """
        row = _row(base)
        positions, values = [row[:0].long()], [row[:0]]
        for part, change in decoded(
            entries, offsets, payload, like=row, block_elements=block_elements
        ):
            places = change.nonzero()[:, 0]
            positions.append(places + part.start)
            values.append(row[part][places] + change[places])
        return torch.cat(positions), torch.cat(values)

    def digest(self, bits: Any, *, first_index: int = 0, seed: int = 0) -> Any:
        """Return the two sums of a digest, (2,) int64."""
        return digest(_row(bits), first_index=first_index, seed=seed)

    def digest_all(self, tensors: Sequence[Any]) -> Any:
        """Return the digests of tensors, (tensors, 2) int64."""
        return torch.stack([self.digest(one) for one in tensors])


def _row(tensor: Any) -> Any:
    """Return the elements as a row: the same memory, or a copy if the tensor is strided."""
    return tensor.contiguous().view(-1)


def _row_of(table: Any, *payload: Any) -> Any:
    """Return table and payload as one row of 32-bit words."""
    return torch.cat([table.view(torch.int32), *payload])


def _ends_of(table: Any) -> Any:
    """Return where the payload of each block begins, and the end of the last one."""
    sizes = (table >> 44) & 0xFFFFF
    return torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])


def _keys(new: Any, shadow: Any, ages: Any, age_limit: int) -> Iterator[tuple[slice, Any]]:
    """Yield the keys of all changes, part by part."""
    fresh, held = _row(new), _row(shadow)
    aged = None if ages is None else _row(ages).view(torch.uint8)
    for at in range(0, len(fresh), GROUP_ELEMENTS):
        part = slice(at, at + GROUP_ELEMENTS)
        due = None if aged is None else aged[part]
        yield part, change_keys(fresh[part], held[part], due, age_limit)


def _changes(
    new: Any, shadow: Any, threshold: Any, ages: Any, age_limit: int
) -> Iterator[tuple[slice, Any, Any]]:
    """Yield each part's place in the row, its differences, and the differences that are sent."""
    fresh, held = _row(new), _row(shadow)
    keys = _keys(new, shadow, ages, age_limit)
    for at in range(0, len(fresh), GROUP_ELEMENTS):
        part = slice(at, at + GROUP_ELEMENTS)
        difference = fresh[part] - held[part]
        sent = difference
        if threshold is not None:
            sent = difference * (next(keys)[1] >= threshold)
        yield part, difference, sent
