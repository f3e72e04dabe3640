"""Measures how much a serving engine that lends nothing could have lent since its start."""

from collections.abc import Mapping

from rose.executor import CoServing
from rose.units import NS_PER_S


class SpareMeter:
    """Measures idle time, and the time average of the spare memory. For one thread."""

    def __init__(self, device: CoServing) -> None:
        """Start observing an idle device."""
        self._device = device
        self._clock = device.lender.clock
        self._began_ns = self._noted_ns = self._clock.now_ns()
        self._is_idle = True
        self._idle_ns = 0
        self._lendable_slabs = self._least_slabs = self._spare_slabs()
        self._slab_ns = 0

    def _spare_slabs(self) -> int:
        """Return how many slabs exceed what serving could need within a revocation's deadline."""
        lender = self._device.lender
        slack = lender.supply.slack_blocks(self._device.arbiter.snapshot())
        return max(0, min(lender.lendable_slabs, slack // lender.kv.blocks_per_slab))

    def note(self, *, is_idle: bool) -> None:
        """Record the state from now on. Called after a request has arrived or a step has ended."""
        now_ns = self._clock.now_ns()
        elapsed_ns, self._noted_ns = now_ns - self._noted_ns, now_ns
        self._idle_ns += elapsed_ns * self._is_idle
        self._slab_ns += elapsed_ns * self._lendable_slabs
        self._is_idle, self._lendable_slabs = is_idle, self._spare_slabs()
        self._least_slabs = min(self._least_slabs, self._lendable_slabs)

    def report(self) -> Mapping[str, float]:
        """Return the figures since the start.

        Returns:
            Seconds observed; share of time without a request, 0 to 1; and how many bytes could be
            lent: now, on average over time, and at the worst moment.
        """
        self.note(is_idle=self._is_idle)
        observed_ns = max(1, self._noted_ns - self._began_ns)
        slab_bytes = self._device.arbiter.slab_bytes
        return {
            "observed_s": observed_ns / NS_PER_S,
            "idle_share": self._idle_ns / observed_ns,
            "lendable_bytes": self._lendable_slabs * slab_bytes,
            "lendable_bytes_mean": self._slab_ns / observed_ns * slab_bytes,
            "lendable_bytes_least": self._least_slabs * slab_bytes,
        }
