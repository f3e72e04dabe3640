"""Learning from trajectories: what one is, and what is learned from it."""

from rose.demo.rl.trajectory import Trajectory

__all__ = ["Trajectory"]
