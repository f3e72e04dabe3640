"""An engine's side: what to take next, staging, the commit, and the sweep after it."""
