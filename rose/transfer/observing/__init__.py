"""Metrics of transfer and timelines of updates, for operators."""
