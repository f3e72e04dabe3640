"""What operators see of transfer: metrics, and timelines of updates."""
