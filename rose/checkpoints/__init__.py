"""Checkpoints on disk: read, compared, updated in place, and changed by a delta file."""
