"""The interface of a scheme that decides when rollouts run.

A governor controls the simulated machine, or a real engine behind a `HostGate`. It is informed
of events, with their times in milliseconds of one clock, and asked for decisions. It has no clock
and takes no actions.
"""

import math
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from rose_lab.sim.device import Sharing, StepWork


class Grain(Enum):
    """Unit of rollout work that one permission starts, and that cannot be stopped."""

    SEGMENT = "layers between two gates"
    STEP = "a whole rollout step"


class Probe(NamedTuple):
    """A step that idle serving runs only to measure its time."""

    work: StepWork
    took_ms: float


class Governor:
    """Base class: serving never waits and rollouts never run. Schemes override its methods.

    Calls come from one thread, in order of time. Requests are identified by number.
    """

    sharing: Sharing = Sharing.TURNS
    grain: Grain = Grain.SEGMENT
    # Units of rollout work that may be queued on the device, where they can no longer be recalled.
    window: int = 1

    def arrived(self, now_ms: float, request: int, *, prompt_tokens: int) -> None:
        """Record a request, before the engine can see it."""

    def probe_due(self, now_ms: float) -> Probe | None:
        """Return the probe to run now, or None. Called while the device is idle."""
        del now_ms
        return None

    def lends_until(self, now_ms: float, work: StepWork) -> float:
        """Return the time until which serving lets rollouts go first.

        Called when serving is ready for a step, and again after each rollout segment. The step
        begins as soon as the returned time is not in the future.
        """
        del work
        return now_ms

    def step_begins(self, now_ms: float, work: StepWork) -> None:
        """Record that serving asks for the device; a running segment may have to end first."""

    def step_ended(
        self, now_ms: float, work: StepWork, *, took_ms: float, blocked_ms: float, lent_ms: float
    ) -> None:
        """Record the end of a serving step, before its tokens.

        Args:
            now_ms: current time.
            work: work of the step.
            took_ms: time since the step started on the device.
            blocked_ms: wait for a running segment, beyond the lent time.
            lent_ms: time for which rollouts went first.
        """

    def tokens(self, now_ms: float, requests: Sequence[int]) -> None:
        """Record a token for each of these requests."""

    def finished(self, now_ms: float, request: int) -> None:
        """Record the end of a request."""

    def tick(self, now_ms: float) -> None:
        """Do the work that is due, before new work starts.

        Called after every event, and at the time of `look_again`.
        """

    def may_start(self, now_ms: float) -> bool:
        """Return whether a unit of rollout work may start now; True starts it.

        Called when the device could take a unit.
        """
        del now_ms
        return False

    def segment_ended(self, now_ms: float, *, is_last: bool) -> None:
        """Record the end of a unit of rollout work; `is_last`: whether its step has ended too."""

    def look_again(self, now_ms: float) -> float:
        """Return the time of the next `tick`, if nothing happens before."""
        del now_ms
        return math.inf
