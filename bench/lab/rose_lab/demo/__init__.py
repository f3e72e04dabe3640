"""Experiments on arms: the same traffic with and without rollouts beside it."""
