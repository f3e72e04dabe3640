"""The delta codec: what changed between two versions of a tensor, and tensors as it takes them."""
