"""Parts of the programs that run on one machine: engines, and the processes of a fleet."""
