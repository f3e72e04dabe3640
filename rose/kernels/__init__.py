"""Launchers of the embedded CUDA kernels, and the delta codec in Triton for GPUs without them.

Modules are imported by name: this package itself loads no framework. The format is in
`docs/protocol.md`, "Deltas" and "Digests".
"""
