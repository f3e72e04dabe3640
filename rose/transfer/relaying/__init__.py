"""Between the two: relays, each of which keeps versions for a cluster."""
