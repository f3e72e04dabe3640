"""vLLM 0.33's own scheduler and KV cache manager, over the slabs of a rose device.

vLLM builds its `KVCacheManager`, and that its `BlockPool`, by the names that their modules import;
`seams.pool_of` stands in for both names while a scheduler is built. Nothing of vLLM is copied.

Nothing is imported here, so that what needs no vLLM can be had without it.
"""
