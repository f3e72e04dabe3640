"""The delta codec in Triton, for GPUs that no fat binary is embedded for.

Each module is named by its function, and is imported by name: this package itself loads no
framework. The format is in `docs/protocol.md`, "Deltas" and "Digests".
"""
