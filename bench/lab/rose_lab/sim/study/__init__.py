"""Studies: all arms of a scenario under the same seeds, their figures, and comparisons."""
