"""Connectors that put an inference engine's memory and steps under rose."""
