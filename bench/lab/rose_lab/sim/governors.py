"""Schemes that others have published, implemented from their published rules."""

import math
from collections.abc import Callable, Sequence

from rose.slo import SLO
from rose_lab.sim.device import Sharing, StepWork
from rose_lab.sim.governor import Governor, Grain


class NoRollouts(Governor):
    """Serving without rollouts: the reference for the other schemes."""


class ShareAll(Governor):
    """Both engines launch freely, and the hardware mixes their work."""

    sharing = Sharing.TOGETHER
    grain = Grain.STEP

    def may_start(self, now_ms: float) -> bool:
        """Allow every unit of rollout work."""
        del now_ms
        return True


class StaticSplit(ShareAll):
    """Each engine has its own SMs permanently, as in MPS with fixed percentages or MIG."""

    sharing = Sharing.SPLIT


class _WhileIdle(Governor):
    """Rollouts run while serving has no request."""

    def __init__(self) -> None:
        self._live: set[int] = set()

    def arrived(self, now_ms: float, request: int, *, prompt_tokens: int) -> None:
        """Add the request."""
        del now_ms, prompt_tokens
        self._live.add(request)

    def finished(self, now_ms: float, request: int) -> None:
        """Remove the request."""
        del now_ms
        self._live.discard(request)

    def may_start(self, now_ms: float) -> bool:
        """Return True while there is no request."""
        del now_ms
        return not self._live


class Priority(_WhileIdle):
    """Serving goes first, but waits for a running rollout step.

    Source: the CUDA driver API on stream priorities: they "do not preempt already-running work". A
        step stands for the queue of the lower-priority stream. Kernels that leave SMs free are not
        modelled, so serving fares better here than on hardware.
    """

    grain = Grain.STEP


class HostWindow(_WhileIdle):
    """XSched at level 1: commands wait on the host, except for a window of two on the device.

    A CUDA graph is one command, so the window holds two whole steps. Rollouts run while serving has
    no work, and steps in the window run to their end.

    Source: XSched (OSDI 2025), sections 4 and 7.3; its documentation on CUDA graphs.
    """

    grain = Grain.STEP
    window = 2


class RosePaper(Governor):
    """The paper's rule of two slacks: one rollout step per tick of serving's scheduler.

    The slacks are S_prf = t_arr + B_TTFT - now - T_prf and S_dec = t_last + B_TPOT - now - T_dec,
    with step times T from a profile. Rollouts run if both slacks are above 0 for all requests.

    Source: arXiv 2605.06534, admission by dual SLO. The paper's chunk of 512 tokens is a rollout
        step of 12 ms here.
    """

    grain = Grain.STEP

    def __init__(self, slo: SLO, profile: Callable[[StepWork], float]) -> None:
        """Start without requests.

        Args:
            slo: latency targets.
            profile: function that returns the measured time of a step, in ms.
        """
        self._slo = slo
        self._profile = profile
        self._waiting: dict[int, tuple[float, int]] = {}  # (arrival, prompt tokens)
        self._last_ms: dict[int, float] = {}
        self._may_go_first = False

    def arrived(self, now_ms: float, request: int, *, prompt_tokens: int) -> None:
        """Queue the request."""
        self._waiting[request] = (now_ms, prompt_tokens)

    def tokens(self, now_ms: float, requests: Sequence[int]) -> None:
        """Record each request's last token."""
        for request in requests:
            self._waiting.pop(request, None)
            self._last_ms[request] = now_ms

    def finished(self, now_ms: float, request: int) -> None:
        """Forget the request."""
        del now_ms
        self._last_ms.pop(request, None)

    def lends_until(self, now_ms: float, work: StepWork) -> float:
        """Let one rollout step go first if there is slack, once per tick."""
        if self._may_go_first:
            self._may_go_first = False
            return now_ms
        self._may_go_first = self._has_slack(now_ms, self._profile(work))
        return math.inf if self._may_go_first else now_ms

    def may_start(self, now_ms: float) -> bool:
        """Return True for the one step that a tick allows, and while there is no request."""
        del now_ms
        return self._may_go_first or not (self._waiting or self._last_ms)

    def _has_slack(self, now_ms: float, step_ms: float) -> bool:
        for arrival_ms, prompt_tokens in self._waiting.values():
            prefill_ms = self._profile(StepWork(0, 0, prompt_tokens))
            if arrival_ms + self._slo.ttft_ms - now_ms - prefill_ms <= 0:
                return False
        if not self._last_ms:
            return True
        return min(self._last_ms.values()) + self._slo.tpot_ms - now_ms - step_ms > 0


class Valve(_WhileIdle):
    """Lends only idle time: stops at an arrival, and starts again after a cool-down.

    The cool-down is twice the longest time between two decode iterations, so that a gap within a
    request does not count as idle. Valve can disable a channel while its kernels run; here rollouts
    stop at the end of a segment.

    Source: arXiv 2604.07874 (Valve), its rule for releasing the device.
    """

    def __init__(self) -> None:
        """Start idle, with no gap seen."""
        super().__init__()
        self._ended_ms = -math.inf
        self._longest_gap_ms = 0.0
        self._idle_since_ms = -math.inf

    def step_ended(
        self, now_ms: float, work: StepWork, *, took_ms: float, blocked_ms: float, lent_ms: float
    ) -> None:
        """Measure the gap since the previous step, unless serving was idle in between."""
        del work, took_ms, blocked_ms, lent_ms
        if self._ended_ms > self._idle_since_ms:
            self._longest_gap_ms = max(self._longest_gap_ms, now_ms - self._ended_ms)
        self._ended_ms = now_ms

    def finished(self, now_ms: float, request: int) -> None:
        """Start the cool-down after the last request."""
        super().finished(now_ms, request)
        if not self._live:
            self._idle_since_ms = now_ms

    def may_start(self, now_ms: float) -> bool:
        """Return True after the cool-down, while there is no request."""
        return not self._live and now_ms >= self._cool_ms()

    def look_again(self, now_ms: float) -> float:
        """Return the end of the cool-down."""
        cool_ms = self._cool_ms()
        return cool_ms if not self._live and cool_ms > now_ms else math.inf

    def _cool_ms(self) -> float:
        return self._idle_since_ms + 2 * self._longest_gap_ms
