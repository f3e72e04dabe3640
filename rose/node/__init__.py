"""Programs of one machine: worker processes and their servers."""
