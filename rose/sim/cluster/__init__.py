"""A cluster in virtual time: the scheduler's real core, over engines that are models."""
