"""Who decides when rollouts run: the seam between a scheme and what it governs.

What is governed may be the simulated machine or a real engine behind a `HostGate`: a governor is
told what happens, in milliseconds of one clock, and is asked. It keeps no clock and acts on
nothing.
"""

import math
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from rose.sim.device import Sharing, StepWork


class Grain(Enum):
    """What starts with one yes, and cannot be stopped inside."""

    SEGMENT = "layers between two gates"
    STEP = "a whole rollout step"


class Probe(NamedTuple):
    """A step that serving runs while it is idle, only to measure how long it takes."""

    work: StepWork
    took_ms: float


class Governor:
    """Tells nobody to wait and lets nothing run; schemes say what they do otherwise.

    The calls come from one thread, in the order of time. Requests are known by number.
    """

    sharing: Sharing = Sharing.TURNS
    grain: Grain = Grain.SEGMENT
    # Pieces that may be on their way to the device; once they are, nobody calls them back.
    window: int = 1

    def arrived(self, now_ms: float, request: int, *, prompt_tokens: int) -> None:
        """Note a request, before the engine can see it."""

    def probe_due(self, now_ms: float) -> Probe | None:
        """Return the probe to run now, or None. Asked while the device is idle."""
        del now_ms
        return None

    def lends_until(self, now_ms: float, work: StepWork) -> float:
        """Say until when serving, which is ready for a step, lets rollouts go first.

        Asked when serving is ready, and again whenever a rollout segment has ended since. An answer
        that is not in the future begins the step.
        """
        del work
        return now_ms

    def step_begins(self, now_ms: float, work: StepWork) -> None:
        """Note that serving asks for the device now; a segment that runs may still be in front."""

    def step_ended(
        self, now_ms: float, work: StepWork, *, took_ms: float, blocked_ms: float, lent_ms: float
    ) -> None:
        """Note that a step of serving ended, before its tokens are told.

        Args:
            now_ms: now.
            work: what it did.
            took_ms: from its start on the device.
            blocked_ms: that it waited for a segment before, beyond what was lent.
            lent_ms: that rollouts went first.
        """

    def tokens(self, now_ms: float, requests: Sequence[int]) -> None:
        """Note that each of these requests got one token."""

    def finished(self, now_ms: float, request: int) -> None:
        """Note that a request is over."""

    def tick(self, now_ms: float) -> None:
        """Do what is due at this time, before anything starts.

        Called whenever something has happened, and at the time of `look_again`.
        """

    def may_start(self, now_ms: float) -> bool:
        """Say whether a piece of rollout work may start now; a yes starts it.

        Asked when the device could take one.
        """
        del now_ms
        return False

    def segment_ended(self, now_ms: float, *, is_last: bool) -> None:
        """Note that a piece of rollout work ended; `is_last` of its rollout step."""

    def look_again(self, now_ms: float) -> float:
        """Say when to look again, should nothing else happen before."""
        del now_ms
        return math.inf
