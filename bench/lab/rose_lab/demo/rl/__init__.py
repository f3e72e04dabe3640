"""A small RL loop: trajectories, training, and weight publication."""
