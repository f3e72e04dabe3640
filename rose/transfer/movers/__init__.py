"""Movers: libraries of others that carry chunks, each in a process that holds nothing else."""
