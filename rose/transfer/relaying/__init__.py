"""Relays between publisher and receivers, each of which keeps versions for a cluster."""
