"""The delta codec on a GPU: launchers of the embedded CUDA kernels, and Triton kernels.

`codec.gpu_codec` picks one of the two. In Triton each operation is a file: `delta_pack`,
`delta_apply`, `topk` and `digest`, over `block_plan` and `tile`. Modules are imported by name: this
package itself loads no framework. The format is in `docs/protocol.md`, "Deltas" and "Digests".
"""
