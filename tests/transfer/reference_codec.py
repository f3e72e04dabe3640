"""The codec of a GPU as a plain stand-in: tensors of the CPU, and the bits of the reference.

What is tested with it is the way from a tensor and a `Delta` to a kernel and back, in
`rose/transfer/codec/gpu.py`; the kernels have tests of their own.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rose.kernels.blocks import PackedBlocks
from tests.reference import delta as reference


def row_of(bits: Any) -> Any:
    """Return the elements as unsigned numbers in a row, a copy."""
    whole = bits.numpy()
    return whole.view(f"u{whole.itemsize}").reshape(-1).copy()


def put(bits: Any, row: Any) -> None:
    whole = bits.numpy()
    whole.view(f"u{whole.itemsize}")[...] = row.reshape(whole.shape)


class ReferenceCodec:
    checks_deltas = False

    def __init__(self) -> None:
        self.calls: list[str] = []

    def delta_pack(
        self,
        new: Any,
        shadow: Any,
        *,
        block_elements: int,
        threshold: Any = None,
        ages: Any = None,
        age_limit: int = 255,
        base_digest: Any,
    ) -> PackedBlocks:
        import torch

        self.calls.append("delta_pack")
        moved = row_of(shadow)
        base = base_digest.numpy().view(np.uint64).tolist()
        assert tuple(base) == reference.digest(moved), "a wrong base digest"
        counts = (
            None
            if ages is None
            else reference.Ages(ages.numpy().view(np.uint8).reshape(-1), age_limit)
        )
        delta = reference.pack(
            row_of(new),
            moved,
            block_elements=block_elements,
            threshold=0 if threshold is None else int(threshold),
            ages=counts,
        )
        put(shadow, moved)
        table = np.array(delta.entries, np.uint64).view(np.uint32)
        unused = np.full(3, 0xA5A5A5A5, np.uint32)
        row = np.concatenate([table, np.array(delta.payload, np.uint32), unused])
        ends = np.cumsum([0, *(entry >> 44 for entry in delta.entries)], dtype=np.int64)
        sums = np.array(reference.digest(moved), np.uint64)
        return PackedBlocks(
            row=torch.from_numpy(row.view(np.int32)),
            ends=torch.from_numpy(ends),
            digest=torch.from_numpy(sums.view(np.int64)),
        )

    def delta_apply(
        self,
        weights: Any,
        entries: Any,
        offsets: Any,
        payload: Any,
        *,
        block_elements: int,
        undo: bool,
    ) -> None:
        self.calls.append("delta_apply")
        delta = model_of(weights, entries, offsets, payload, block_elements=block_elements)
        held = row_of(weights)
        reference.apply(delta, held, undo=undo)
        put(weights, held)

    def delta_apply_all(
        self,
        weights: Sequence[Any],
        tables: Sequence[Sequence[Any]],
        block_elements: Sequence[int],
        *,
        undo: bool = False,
        has_digest: bool = False,
    ) -> tuple[None, None]:
        assert not has_digest  # It does not check deltas.
        for one, table, elements in zip(weights, tables, block_elements, strict=True):
            self.delta_apply(one, *table, block_elements=elements, undo=undo)
        return None, None

    def topk_threshold(
        self, new: Any, shadow: Any, *, budget: int, ages: Any = None, age_limit: int = 255
    ) -> Any:
        import torch

        self.calls.append("topk_threshold")
        counts = (
            None
            if ages is None
            else reference.Ages(ages.numpy().view(np.uint8).reshape(-1), age_limit)
        )
        return torch.tensor(reference.topk_threshold(row_of(new), row_of(shadow), budget, counts))

    def topk_unpack(
        self,
        base: Any,
        entries: Any,
        offsets: Any,
        payload: Any,
        *,
        firsts: Any,
        changed: int,
        bad_block: Any,
        block_elements: int,
    ) -> tuple[Any, Any]:
        import torch

        self.calls.append("topk_unpack")
        delta = model_of(base, entries, offsets, payload, block_elements=block_elements)
        positions, values = reference.topk_unpack(delta, row_of(base))
        of_blocks = [entry >> 4 & 0xFFFFF for entry in delta.entries]
        assert firsts.tolist() == np.cumsum([0, *of_blocks])[:-1].tolist()
        assert (changed, int(bad_block)) == (len(positions), -1)
        width = base.element_size()
        bits = torch.from_numpy(np.array(values, f"u{width}").view(f"i{width}"))
        return torch.tensor(positions, dtype=torch.int64), bits

    def digest(self, bits: Any, *, first_index: int = 0, seed: int = 0) -> Any:
        import torch

        self.calls.append("digest")
        sums = reference.digest(row_of(bits), first_index=first_index, seed=seed)
        return torch.from_numpy(np.array(sums, np.uint64).view(np.int64))

    def digest_all(self, tensors: Sequence[Any]) -> Any:
        import torch

        return torch.stack([self.digest(one) for one in tensors])


def model_of(
    bits: Any, entries: Any, offsets: Any, payload: Any, *, block_elements: int
) -> reference.Delta:
    """Return what the kernels are told, as a delta of the reference."""
    words = payload.numpy().view(np.uint32).tolist()
    table = entries.numpy().view(np.uint64).tolist()
    found: list[int] = []
    for entry, offset in zip(table, offsets.tolist(), strict=True):
        assert 0 <= offset <= len(words) - (entry >> 44), "a payload outside of the payload"
        found += words[offset : offset + (entry >> 44)]
    return reference.Delta(bits.numel(), block_elements, table, found, 8 * bits.element_size())
