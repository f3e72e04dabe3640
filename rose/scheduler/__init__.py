"""The elastic rollout scheduler: which worker runs which turn of which trajectory."""
