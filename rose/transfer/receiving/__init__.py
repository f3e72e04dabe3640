"""An engine's side: choice of the next version, staging, the commit, and checks in between."""
