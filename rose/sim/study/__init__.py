"""Studies: all arms of a scenario under the same seeds, what each got, and how they compare."""
