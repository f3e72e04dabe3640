"""How long a step of serving waits for rollouts in trouble, in virtual time.

A burst: more requests than fit a batch arrive at once while rollouts run. A frozen host: serving's
host gives no heartbeat for a while before such a burst. The third trouble, a borrower that is stuck
in a segment, needs no simulation: serving continues after `Policy.park_wait_ms`.
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from bench.lab.suites.frontier import DEVICE, TARGETS
from rose.units import NS_PER_MS
from rose_lab.sim import Request, default_policy
from rose_lab.sim.core import CoreGovernor
from rose_lab.sim.governor import Governor
from rose_lab.sim.simulation import govern

EVERY_MS: Final = 2000.0
FREEZE_MAX_MS: Final = 500.0  # twice the largest age of a heartbeat: some freezes are noticed
BURST: Final = 100
PROMPT_TOKENS: Final = 16
OUTPUT_TOKENS: Final = 4


@dataclass(frozen=True, slots=True)
class Trouble:
    """Bursts, and the time for which serving's host is frozen before each.

    Args:
        at_ms: arrival of all requests of a burst.
        freeze_ms: duration of the freeze before each burst.
    """

    at_ms: tuple[float, ...]
    freeze_ms: tuple[float, ...]

    @property
    def requests(self) -> list[Request]:
        return [
            Request(at_ms, PROMPT_TOKENS, OUTPUT_TOKENS)
            for at_ms in self.at_ms
            for _ in range(BURST)
        ]

    def is_frozen(self, now_ms: float) -> bool:
        """True if the host is frozen."""
        number = int(now_ms // EVERY_MS)
        if number >= len(self.at_ms):
            return False
        return self.at_ms[number] - self.freeze_ms[number] <= now_ms < self.at_ms[number]


def trouble(bursts: int, *, is_freezing: bool, seed: int) -> Trouble:
    """Return a burst about every `EVERY_MS`, so that they hit all parts of a segment."""
    random = np.random.default_rng(seed)
    return Trouble(
        at_ms=tuple((EVERY_MS * np.arange(1, bursts + 1) - random.uniform(0, 50, bursts)).tolist()),
        freeze_ms=tuple((is_freezing * random.uniform(0, FREEZE_MAX_MS, bursts)).tolist()),
    )


class FrozenHost(CoreGovernor):
    """Rose with a host that freezes as in the trouble."""

    def __init__(self, slowdown: float, troubled: Trouble) -> None:
        self._troubled = troubled
        slo = replace(TARGETS, slowdown=slowdown)
        super().__init__(slo, default_policy(DEVICE), DEVICE, log_path="")

    def beat(self) -> None:
        if not self._troubled.is_frozen(self._ms_of(self.clock.now_ns())):
            super().beat()


class Segments:
    """An observer that stores the duration of each segment, in ms."""

    def __init__(self) -> None:
        self.took_ms: list[float] = []
        self._began_ns = 0

    def __call__(self, at_ns: int, what: str, number: int) -> None:
        del number
        if what == "segment":
            self._began_ns = at_ns
        elif what == "segment_end":
            self.took_ms.append((at_ns - self._began_ns) / NS_PER_MS)


def worst_blocking(governor: Governor, troubled: Trouble, *, seed: int) -> tuple[float, float]:
    """Return the longest wait of a step beyond lent time, and the P99 of segments, in ms."""
    segments = Segments()
    requests = troubled.requests
    outcome = govern(requests, DEVICE, governor, slo=TARGETS, seed=seed, observer=segments)
    return max(outcome.blocked_ms), float(np.percentile(segments.took_ms, 99))
