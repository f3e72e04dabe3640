"""A cluster in virtual time: the scheduler's real core over modelled engines."""
