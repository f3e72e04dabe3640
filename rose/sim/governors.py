"""Other people's schemes, each written from its published rule."""

import math
from collections.abc import Callable, Sequence

from rose.sim.device import Sharing, StepWork
from rose.sim.governor import Governor, Grain
from rose.slo import SLO


class Alone(Governor):
    """Serving without rollouts: what the others are held against."""


class ShareAll(Governor):
    """Both engines launch what they like, and the hardware mixes it."""

    sharing = Sharing.TOGETHER
    grain = Grain.STEP

    def may_start(self, now_ms: float) -> bool:
        """Say yes."""
        del now_ms
        return True


class StaticSplit(ShareAll):
    """Each engine has its own SMs for good, as in MPS with fixed percentages or MIG."""

    sharing = Sharing.SPLIT


class _WhileIdle(Governor):
    """Rollouts while serving has no request."""

    def __init__(self) -> None:
        """Start idle."""
        self._live: set[int] = set()

    def arrived(self, now_ms: float, request: int, *, prompt_tokens: int) -> None:
        """Count it."""
        del now_ms, prompt_tokens
        self._live.add(request)

    def finished(self, now_ms: float, request: int) -> None:
        """Count it out."""
        del now_ms
        self._live.discard(request)

    def may_start(self, now_ms: float) -> bool:
        """Say yes while there is no request."""
        del now_ms
        return not self._live


class Priority(_WhileIdle):
    """Serving first, and nothing more: a rollout step that runs is waited for.

    Source: the CUDA driver API on stream priorities: they "do not preempt already-running work".
    A step stands for what the lower stream has queued; kernels that leave SMs free to it are not
    modelled, which is kinder to serving than the hardware.
    """

    grain = Grain.STEP


class HostWindow(_WhileIdle):
    """XSched at level 1: commands wait on the host, but for a window of two on the device.

    A CUDA graph is one command, so the window holds two whole steps. Rollouts run while serving has
    no work, and those in the window run out.

    Source: XSched (OSDI 2025), sections 4 and 7.3; its documentation on CUDA graphs.
    """

    grain = Grain.STEP
    window = 2


class RosePaper(Governor):
    """The dual slack of the paper, one rollout step for each tick of serving's scheduler.

    S_prf = t_arr + B_TTFT - now - T_prf and S_dec = t_last + B_TPOT - now - T_dec, with T from a
    profile; rollouts run if both are above 0 for every request there is.

    Source: arXiv 2605.06534, admission by dual SLO. A rollout step of 12 ms is its 512-token chunk.
    """

    grain = Grain.STEP

    def __init__(self, slo: SLO, profile: Callable[[StepWork], float]) -> None:
        """Start without requests.

        Args:
            slo: the targets.
            profile: how long a step takes, in ms, as measured before.
        """
        self._slo = slo
        self._profile = profile
        self._waiting: dict[int, tuple[float, int]] = {}  # arrival and prompt
        self._last_ms: dict[int, float] = {}
        self._may_go_first = False
        self._next_ms = 0.0  # the serving step that is planned

    def arrived(self, now_ms: float, request: int, *, prompt_tokens: int) -> None:
        """Queue it."""
        self._waiting[request] = (now_ms, prompt_tokens)

    def tokens(self, now_ms: float, requests: Sequence[int]) -> None:
        """Note when each had its last token."""
        for request in requests:
            self._waiting.pop(request, None)
            self._last_ms[request] = now_ms

    def finished(self, now_ms: float, request: int) -> None:
        """Forget it."""
        del now_ms
        self._last_ms.pop(request, None)

    def lends_until(self, now_ms: float, work: StepWork) -> float:
        """Let one rollout step go first if there is slack; a tick is over when it has run."""
        if self._may_go_first:
            self._may_go_first = False
            return now_ms
        self._may_go_first = self._has_slack(now_ms, self._profile(work))
        return math.inf if self._may_go_first else now_ms

    def may_start(self, now_ms: float) -> bool:
        """Say yes where a tick said so, and while there is no request at all."""
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
    """Idle time only: closed at an arrival, open again after a cool-down.

    The cool-down is twice the longest time between two decode iterations, so that a gap inside a
    request is not taken for idleness. Channels are switched off under the running kernels, which a
    segment stands for.

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
        """Measure the gap since the step before, if there was no idle time between."""
        del work, took_ms, blocked_ms, lent_ms
        if self._ended_ms > self._idle_since_ms:
            self._longest_gap_ms = max(self._longest_gap_ms, now_ms - self._ended_ms)
        self._ended_ms = now_ms

    def finished(self, now_ms: float, request: int) -> None:
        """Start to cool down after the last."""
        super().finished(now_ms, request)
        if not self._live:
            self._idle_since_ms = now_ms

    def may_start(self, now_ms: float) -> bool:
        """Say yes after the cool-down, while there is no request."""
        return not self._live and now_ms >= self._cool_ms()

    def look_again(self, now_ms: float) -> float:
        """Look at the end of the cool-down."""
        cool_ms = self._cool_ms()
        return cool_ms if not self._live and cool_ms > now_ms else math.inf

    def _cool_ms(self) -> float:
        return self._idle_since_ms + 2 * self._longest_gap_ms
