"""What operators see of it: metrics, and timelines of updates."""
