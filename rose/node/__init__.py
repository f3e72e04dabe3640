"""Parts that run on one machine: worker processes, their servers, and lending by the broker."""
