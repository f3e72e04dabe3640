"""vLLM 0.33's own scheduler and KV cache manager, over the slabs of a rose device.

vLLM constructs its `KVCacheManager` and `BlockPool` by names that its modules import;
`seams.pool_of` replaces both names while a scheduler is built. No vLLM code is copied.

Nothing is imported here, so that parts without vLLM can be used without it.
"""
