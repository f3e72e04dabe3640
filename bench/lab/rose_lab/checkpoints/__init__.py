"""Compare checkpoints, and keep the difference of two as a file that can be applied and undone."""
