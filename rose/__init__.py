"""Lend idle memory and compute of serving GPUs to RL rollouts, and take them back in time."""

__version__ = "0.1.0"
