"""Launchers of the embedded CUDA kernels, and their Triton twins for other GPUs.

Modules are imported by name: this package itself loads no framework. The format is in
`docs/protocol.md`, "Deltas" and "Digests".
"""
