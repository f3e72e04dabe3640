"""Checkpoints on disk: read, kept at a version, compared, and changed by a delta file."""
