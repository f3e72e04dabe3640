"""Ranks of one replica: they are in use at one version, or none is."""
