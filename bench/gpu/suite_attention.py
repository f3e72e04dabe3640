"""Attention over KV in slabs, compared with a pool that has one model's blocks only."""

import math
from typing import Any, Final

from bench.gpu.lanes import Lanes
from bench.gpu.report import Report
from bench.gpu.timing import event_timed, fresh_seed
from bench.paired import Pairs
from bench.rows import Bar, Peer
from rose.errors import check
from rose.units import MIB

# An 8B model's attention with eight KV heads, and a decoding batch.
LAYERS: Final = 32
KV_HEADS: Final = 8
HEADS: Final = 32
HEAD_DIM: Final = 128
BLOCK_TOKENS: Final = 16
SLAB_BYTES: Final = 32 * MIB
SEQUENCES: Final = 32
CONTEXT: Final = 2048
LAYERS_TIMED: Final = 4
ROUNDS: Final = 20

ROWS: Final = ("attention_over_dense",)


class Paged:
    """Decode attention of one layer, over rows that are blocks of K and V of `BLOCK_TOKENS`."""

    def __init__(self, layers: list[Any], table: Any, query: Any) -> None:
        self._layers = layers
        self._table = table
        self._query = query

    def layer(self, number: int) -> Any:
        """Gather the blocks of each sequence, then attend."""
        from torch.nn.functional import scaled_dot_product_attention

        rows = self._layers[number].index_select(0, self._table.flatten())
        # (sequences, blocks, K or V, tokens, heads, head_dim), the layout of a block
        gathered = rows.view(SEQUENCES, -1, 2, BLOCK_TOKENS, KV_HEADS, HEAD_DIM)
        key, value = (
            gathered[:, :, which].reshape(SEQUENCES, CONTEXT, KV_HEADS, HEAD_DIM).transpose(1, 2)
            for which in range(2)
        )
        return scaled_dot_product_attention(self._query, key, value, enable_gqa=True)

    def all_layers(self) -> None:
        for number in range(LAYERS_TIMED):
            self.layer(number)


def slab_views(lanes: Lanes, blocks: int) -> tuple[Any, list[Any], list[int]]:
    """Return an arbiter, a borrower's layer views as bf16 tensors, and its held blocks."""
    import numpy as np
    import torch

    from rose._core import Arbiter
    from rose.engines.torch import as_tensor
    from rose.memory import KVGeometry, KVSpace

    geometry = KVGeometry.from_attention(
        layers=LAYERS,
        kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        dtype_bytes=2,
        block_tokens=BLOCK_TOKENS,
    )
    slabs = math.ceil(blocks / geometry.blocks_per_slab(SLAB_BYTES))
    arbiter = Arbiter.create(
        slab_bytes=SLAB_BYTES, slab_count=slabs, header_slabs=1, device=lanes.gpu.device
    )
    partition = arbiter.add_partition("serving", reserve_slabs=slabs, limit_slabs=slabs)
    arbiter.take(partition, slabs)
    space = KVSpace(arbiter, partition, geometry, header_index=0)
    ids = space.allocator.alloc(blocks)
    check(ids is not None, "the pool is too small for all blocks")
    # numpy has no bf16, but the bits are the same.
    views = [
        as_tensor(view, lanes.torch_device).view(torch.bfloat16)
        for view in space.views(np.int16)[:LAYERS_TIMED]
    ]
    return arbiter, views, list(ids or ())


def measure(report: Report) -> None:
    import torch

    with report.rows(*ROWS):
        lanes = Lanes()
        torch.manual_seed(fresh_seed("attention"))
        blocks = SEQUENCES * CONTEXT // BLOCK_TOKENS
        arbiter, views, ids = slab_views(lanes, blocks)
        order = torch.randperm(blocks, device=lanes.torch_device)
        in_slabs = torch.tensor(ids, device=lanes.torch_device)[order].view(SEQUENCES, -1)
        in_dense = order.view(SEQUENCES, -1)
        shape = (SEQUENCES, HEADS, 1, HEAD_DIM)
        query = torch.randn(shape, device=lanes.torch_device, dtype=torch.bfloat16)
        dense = [
            torch.randn(blocks, view.shape[1], device=lanes.torch_device).to(torch.bfloat16)
            for view in views
        ]
        for view, pool in zip(views, dense, strict=True):
            view[torch.tensor(ids, device=lanes.torch_device)] = pool
        subject, peer = Paged(views, in_slabs, query), Paged(dense, in_dense, query)
        for number in range(LAYERS_TIMED):
            same = torch.equal(subject.layer(number), peer.layer(number))
            check(same, "attention over slabs and over the dense pool differ")
        pairs = Pairs(event_timed(subject.all_layers), event_timed(peer.all_layers))
        for _ in range(ROUNDS):
            pairs.round()
        paired = pairs.result()
        peer_row = Peer("a dense pool of blocks", paired.peer * 1e3 / LAYERS_TIMED, "us/layer")
        report.add_ratio("attention_over_dense", paired, peer=peer_row, bar=Bar(at_most=1.02))
        del arbiter
