"""Learning from trajectories: what one is, and what is learned from it."""
