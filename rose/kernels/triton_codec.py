"""The delta codec in Triton and torch, for GPUs without an embedded fat binary.

It is plain rather than fast. Elements are int8, int16 or int32; strided tensors are copied. Work is
queued on torch's current stream.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from rose._core import delta_check
from rose.kernels.delta_apply import delta_apply
from rose.kernels.delta_pack import delta_pack
from rose.kernels.deltas import AGE_LIMIT, DeltaLike, PackedDelta, check_all
from rose.kernels.digest import digest
from rose.kernels.gpu import (
    base_digests_of,
    check_sizes,
    on_host,
    pairs_of,
    refuse_base,
    tables_of,
)
from rose.kernels.topk import topk_threshold, topk_unpack


class TritonCodec:
    """The operations of `rose.kernels.embedded.EmbeddedCodec`, on any GPU that Triton supports.

    The host checks deltas. Packing takes as much memory as the weights.
    """

    def delta_pack(
        self,
        new: Sequence[Any],
        shadow: Sequence[Any],
        *,
        block_elements: int,
        base_digests: Sequence[tuple[int, int] | None],
        threshold: int = 0,
        ages: Any = None,
        age_limit: int = AGE_LIMIT,
        threads: int = 1,  # noqa: ARG002 - the device has its own
    ) -> list[PackedDelta]:
        """Pack tensors of one GPU; on an error nothing is changed."""
        bases = pairs_of(base_digests_of(shadow, base_digests, self.digests))
        packings = [
            delta_pack(
                one,
                other,
                block_elements=block_elements,
                threshold=threshold,
                ages=ages,
                age_limit=age_limit,
            )
            for one, other in zip(new, shadow, strict=True)
        ]
        after = pairs_of(self.digests([one.shadow for one in packings]))
        deltas = [
            PackedDelta(
                on_host(one.entries).view(np.uint64), on_host(one.payload).view(np.uint32), *pair
            )
            for one, *pair in zip(packings, bases, after, strict=True)
        ]
        # These copies come last, because they allocate nothing and so cannot fail halfway.
        for one, held in zip(packings, shadow, strict=True):
            held.copy_(one.shadow.view(held.shape))
            if one.ages is not None:
                ages.view(torch.uint8).copy_(one.ages.view(ages.shape))
        return deltas

    def delta_apply(
        self,
        weights: Sequence[Any],
        deltas: Sequence[DeltaLike],
        names: Sequence[str],
        *,
        undo: bool,
        verify: bool = False,
    ) -> None:
        """Check all deltas, with `verify` also the digests of the weights, then apply them."""
        check_sizes(deltas, weights, names)
        check_all(deltas, names)
        if verify:
            for held, delta, name in zip(
                pairs_of(self.digests(weights)), deltas, names, strict=True
            ):
                if held != (delta.digest if undo else delta.base_digest):
                    refuse_base(name, undo=undo)
        for one, delta, table in zip(weights, deltas, tables_of(deltas, weights[0]), strict=True):
            delta_apply(one, *table, block_elements=delta.block_elements, undo=undo)

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
        """Return the smallest threshold >= 1 that at most `budget` changed bf16 elements reach."""
        return int(topk_threshold(new, shadow, budget=budget, ages=ages, age_limit=age_limit))

    def topk_unpack(
        self, base: Any, delta: DeltaLike
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
        """Check the whole delta, then list positions and new bits of its changes."""
        check_sizes([delta], [base], [""])
        delta_check(delta)
        (table,) = tables_of([delta], base)
        positions, values = topk_unpack(base, *table, block_elements=delta.block_elements)
        return positions.cpu().numpy(), values.cpu().numpy().view(f"u{delta.width // 8}")

    def digest(self, bits: Any, *, threads: int = 1) -> tuple[int, int]:  # noqa: ARG002
        """Return the digest, computed on the device."""
        return pairs_of(digest(bits))[0]

    def digests(self, tensors: Sequence[Any]) -> Any:
        """Return the digests of tensors of one GPU, (tensors, 2) int64, without a wait."""
        return torch.stack([digest(one) for one in tensors])
