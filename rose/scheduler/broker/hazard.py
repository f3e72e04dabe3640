"""How often loans are revoked: a Gamma-Poisson estimate that forgets."""

import math


class Hazard:
    """Revocations per second of lent time.

    The belief before any was seen counts like `weight_s` seconds of lent time at its rate, so a
    device that was lent little is taken to be like the others. Both counts fade exponentially.
    """

    def __init__(self, *, weight_s: float, memory_s: float) -> None:
        """Start with nothing seen."""
        self._weight_s = weight_s
        self._memory_s = memory_s
        self._revocations = 0.0
        self._lent_s = 0.0

    def pass_time(self, seconds: float, *, lent_s: float) -> None:
        """Let time pass, in which a loan (or several) lasted `lent_s` in sum."""
        fading = math.exp(-seconds / self._memory_s)
        self._revocations *= fading
        self._lent_s = self._lent_s * fading + lent_s

    def revoked(self) -> None:
        """Count a revocation."""
        self._revocations += 1

    def per_s(self, *, prior_per_s: float) -> float:
        """Return the estimate.

        Args:
            prior_per_s: the belief before any was seen, > 0.
        """
        revocations = prior_per_s * self._weight_s + self._revocations
        return revocations / (self._weight_s + self._lent_s)
