"""vLLM's own scheduler and KV cache manager (0.32 and 0.33), over the slabs of a rose device.

vLLM constructs its `KVCacheManager` and `BlockPool` by names that its modules import;
`seams.pool_of` replaces both names while a scheduler is built. No vLLM code is copied.

This file imports nothing, so `settings` and `join` can be imported without vLLM.
"""
