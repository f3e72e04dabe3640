"""The KV tensors of vLLM, as views of rose's pool."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.worker import gpu_model_runner

from rose.engines.torch import as_tensor
from rose.errors import Unavailable
from rose.memory import KVGeometry, KVSpace

Allocate: TypeAlias = Callable[[Any], KVSpace]


def geometry_of(config: Any) -> KVGeometry:
    """Return the KV layout that a `KVCacheConfig` describes.

    Raises:
        Unavailable: a layer has no full attention, or its KV has another shape.
    """
    groups = config.kv_cache_groups
    spec: Any = groups[0].kv_cache_spec if groups else None
    if len(groups) != 1 or len(config.kv_cache_tensors) != 1 or type(spec) is not FullAttentionSpec:
        kinds = sorted({type(group.kv_cache_spec).__name__ for group in groups}) or ["no KV"]
        raise Unavailable(
            "all layers of the model must have full attention of one shape, got "
            f"{len(groups)} KV cache groups of {', '.join(kinds)}"
        )
    layers = len(config.kv_cache_tensors[0].layers)
    return KVGeometry(
        layers=layers,
        block_tokens=spec.block_size,
        bytes_per_token=layers * spec.page_size_bytes // spec.block_size,
    )


def views_of(config: Any, space: KVSpace) -> dict[str, torch.Tensor]:
    """Return for each layer a tensor [ids, heads, tokens, 2 x head size] over the pool of `space`.

    Row i of a tensor is the block to which rose gave the id i. At ids that the allocator never
    returns, rows of different layers overlap.
    """
    spec = config.kv_cache_groups[0].kv_cache_spec
    inner = (spec.num_kv_heads, spec.block_size, 2 * spec.head_size)
    layers = config.kv_cache_tensors[0].layers
    return {
        name: as_tensor(view, torch.device("cpu")).view(spec.dtype).view(-1, *inner)
        for name, view in zip(layers, space.views(), strict=True)
    }


@contextmanager
def pool_for_kv(allocate: Allocate) -> Iterator[None]:
    """While this context is open, a worker that creates its KV cache gets views of rose's pool.

    Args:
        allocate: function that returns the tenant's space for a `KVCacheConfig`.
    """

    def views(
        config: Any, device: Any, layout: Any, kernel_block_sizes: list[int]
    ) -> dict[str, torch.Tensor]:
        del device
        space = allocate(config)
        block_tokens = space.geometry.block_tokens
        if layout.name != "LBHNC" or list(kernel_block_sizes) != [block_tokens]:
            raise Unavailable(
                "the attention kernel must read whole KV blocks in the layout LBHNC, got blocks of "
                f"{block_tokens} tokens, kernel blocks of {kernel_block_sizes} and the layout "
                f"{layout.name}: start the server without --block-size"
            )
        return views_of(config, space)

    stock = gpu_model_runner.allocate_kv_cache
    gpu_model_runner.allocate_kv_cache = views
    try:
        yield
    finally:
        gpu_model_runner.allocate_kv_cache = stock
