"""Connectors: how an inference engine's memory and steps are put under rose."""
