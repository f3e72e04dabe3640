"""How often leases are revoked, the plain way: count, add up the time, and shrink to the prior."""

from dataclasses import dataclass


@dataclass
class PlainRate:
    revocations: float = 0.0
    exposed_s: float = 0.0

    def per_s(self, prior_per_s: float, prior_s: float) -> float:
        return (prior_per_s * prior_s + self.revocations) / (prior_s + self.exposed_s)


def hazard_per_s(
    worker: PlainRate, domain: PlainRate, *, prior_per_s: float, prior_s: float
) -> float:
    """Return what to expect of a worker, whose prior is what is expected of its domain."""
    return worker.per_s(domain.per_s(prior_per_s, prior_s), prior_s)
