"""Measures the waits of a borrower with requests; reports them in its status and its log."""

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from rose.clock import Clock
from rose.events import Reason
from rose.units import NS_PER_S

LONG_NS: Final = NS_PER_S
"""Time after which a wait is reported as an event, and requests that wait for memory should move:
longer than any pause between two quanta."""
# A shorter wait is normal beside a serving engine that has requests.
_REPORT_NS: Final = 10 * NS_PER_S
# Factor on the time until the next report of the same wait.
_NEXT_REPORT: Final = 2
_REMEDIES: Final = {
    Reason.SERVING_BUSY: "serving must be idle, or give `rose vllm serve` a --slowdown above 0",
    Reason.SLO_AT_RISK: "give `rose vllm serve` larger targets, see `targets_too_low` in the "
    "/rose/status of serving",
    Reason.NO_EVIDENCE: "serving measures its steps while it is idle; see `evidence_missing` in "
    "the /rose/status of serving",
    Reason.SEGMENT_TOO_LONG: "the pieces between two gates of a step must be shorter, or serving's "
    "targets larger; single segments are tried now and then",
    Reason.BUDGET_SPENT: "rollouts go on with the next request of serving; a larger --slowdown of "
    "`rose vllm serve` allows more",
    Reason.NO_HEARTBEAT: "the process of serving must run and may not be stopped or swapped out",
    Reason.LOG_BROKEN: "the file given with --log of `rose vllm serve` must be writable",
    Reason.LATE: "the slabs come back when the steps that use them end",
    Reason.OVER_LIMIT: "lending may be limited: `rose lending on`",
    Reason.POOL_EMPTY: "serving uses the memory; give `rose vllm serve` a larger KV cache",
    Reason.RESERVE_AT_RISK: "serving uses the memory, or could need it; give `rose vllm serve` a "
    "larger KV cache",
    Reason.CLOSED: "start `rose vllm serve` at the same socket; requests wait",
}
# Reasons that a condition with numbers explains.
_HAS_TERM: Final = frozenset({Reason.SLO_AT_RISK, Reason.NO_EVIDENCE, Reason.SEGMENT_TOO_LONG})


class Waits:
    """Measures the waits for steps, and reports each long wait: after 10 s, 20 s, 40 s and so on.

    A wait begins with a refusal, and ends with a step or with the last request. For one thread.
    """

    def __init__(
        self, clock: Clock, *, term: Callable[[], str | None], report: Callable[[str], None]
    ) -> None:
        """Start without a wait.

        Args:
            clock: clock of the waits.
            term: function that returns the condition of serving that a quantum violated, with its
                numbers, as a sentence; None if it is unknown.
            report: function that gets one line about a long wait.
        """
        self._clock = clock
        self._term = term
        self._report = report
        self._reason: Reason | None = None
        self._refused_ns: Counter[Reason] = Counter()
        self._began_ns: int | None = None
        self._noted_ns = 0
        self._report_ns = _REPORT_NS
        self._step_ns: int | None = None

    def refused(self, reason: Reason) -> None:
        """Count the time since the last call of a method, and report the wait if it is long."""
        now_ns = self._clock.now_ns()
        if self._began_ns is None:
            self._began_ns, self._report_ns = now_ns, _REPORT_NS
        else:
            self._refused_ns[reason] += now_ns - self._noted_ns
        self._noted_ns, self._reason = now_ns, reason
        waited_ns = now_ns - self._began_ns
        if waited_ns >= self._report_ns:
            self._report_ns = _NEXT_REPORT * waited_ns
            self._report(self._line(reason, waited_ns / NS_PER_S))

    def _line(self, reason: Reason, waited_s: float) -> str:
        term = self._term() if reason in _HAS_TERM else None
        why = reason.value if term is None else f"{reason.value}: {term}"
        remedy = _REMEDIES.get(reason)
        return f"no step for {waited_s:.0f} s: {why}" + (f" ({remedy})" if remedy else "")

    def stepped(self) -> None:
        """End the wait, because a step was planned."""
        self._step_ns, self._began_ns = self._clock.now_ns(), None

    def idle(self) -> None:
        """End the wait, because there are no requests."""
        self._began_ns = None

    @property
    def waited_ns(self) -> int:
        """Time since the first refusal of the present wait; 0 without a wait."""
        return 0 if self._began_ns is None else self._clock.now_ns() - self._began_ns

    def event(self) -> dict[str, Any]:
        """Return the data of the event `wait`: the reason of a long wait. Any thread may call."""
        waited_ns, reason = self.waited_ns, self._reason
        if waited_ns < LONG_NS or reason is None:
            return {"reason": None}
        return {
            "reason": reason.name.lower(),
            "waited_s": round(waited_ns / NS_PER_S, 1),
            "remedy": _REMEDIES.get(reason),
        }

    def status(self) -> dict[str, Any]:
        """Return the fields of `/rose/status`.

        `refused` is None if a step was planned after the last refusal.
        """
        now_ns = self._clock.now_ns()
        is_waiting = self._began_ns is not None
        return {
            "since_step_s": None if self._step_ns is None else (now_ns - self._step_ns) / NS_PER_S,
            "refused": self._reason.name.lower() if is_waiting and self._reason else None,
            "refused_s": {
                reason.name.lower(): waited_ns / NS_PER_S
                for reason, waited_ns in self._refused_ns.items()
            },
        }
