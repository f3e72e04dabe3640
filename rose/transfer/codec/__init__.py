"""The delta codec: differences between two versions of a tensor, on any tensor library."""
