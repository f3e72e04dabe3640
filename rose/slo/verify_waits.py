"""Replay of serving's waits for segments (I70): rules 17 to 19 of `docs/certificates.md`."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

from rose.slo.log_file import LogRecord
from rose.slo.verify_claims import broken
from rose.slo.verify_quantum import MODES
from rose.units import NS_PER_MS, NS_PER_S

WINDOW_S: Final = 600
_TRIAL: Final = MODES.index("trial")
# The largest i64, as milliseconds; a longer time could not be recorded.
_MS_MAX: Final = 9e12


def nanoseconds(duration_ms: float) -> int:
    """Convert a duration as the writer does, by cutting off; 0 if it is not a duration."""
    return int(duration_ms * NS_PER_MS) if 0 < duration_ms <= _MS_MAX else 0


@dataclass(slots=True)
class WaitTotals:
    """Totals of the waits of a log.

    Args:
        budget_ns: largest allowed sum of excesses in ten minutes.
        count: number of waits.
        excess_ns: sum of all excesses.
        worst_ns: largest sum of excesses that counted at one time.
        worst_at_ns: time of that sum.
        evicted: number of borrowers that were removed.
        windows: (time of its first excess, sum of its excesses, number of them) of each period of
            ten minutes that has an excess; a period begins with the first excess after the last
            period.
    """

    budget_ns: int = 0
    count: int = 0
    excess_ns: int = 0
    worst_ns: int = 0
    worst_at_ns: int = 0
    evicted: int = 0
    windows: list[tuple[int, int, int]] = field(default_factory=list)

    def add(self, time_ns: int, excess_ns: int) -> None:
        """Add an excess to its period."""
        self.excess_ns += excess_ns
        if self.windows and time_ns - self.windows[-1][0] < WINDOW_S * NS_PER_S:
            began_ns, sum_ns, count = self.windows[-1]
            self.windows[-1] = (began_ns, sum_ns + excess_ns, count + 1)
        else:
            self.windows.append((time_ns, excess_ns, 1))


class WaitReplay:
    """Replays the wait budget from the records."""

    def __init__(self, header: dict[str, Any]) -> None:
        """Begin with an empty budget, which START then sets."""
        self.totals = WaitTotals()
        self._signal_ms = header["signal_ms"]
        self._partitions = header["partitions"]
        self._park_wait_ms = 0.0
        self._covered_ns = 0  # wait that the newest QUANTUM certifies
        self._excesses: deque[tuple[int, int]] = deque()  # (second, excess) that still count
        self._spent_ns = 0

    def start(self, record: LogRecord) -> list[str]:
        """Take over the budget, and check its range."""
        budget_ns, park_wait_ms = record.fields["wait_budget_ns"], record.fields["park_wait_ms"]
        self.totals.budget_ns, self._park_wait_ms = budget_ns, park_wait_ms
        return broken(
            (budget_ns >= 0, lambda: f"wait_budget_ns must not be negative, is {budget_ns}"),
            (
                0 <= park_wait_ms <= _MS_MAX,
                lambda: f"park_wait_ms must be from 0 to {_MS_MAX:g}, is {park_wait_ms}",
            ),
        )

    def _left_ns(self, time_ns: int) -> int:
        """Return what is left of the budget, without excesses that no longer count."""
        while self._excesses and time_ns // NS_PER_S - self._excesses[0][0] > WINDOW_S:
            self._spent_ns -= self._excesses.popleft()[1]
        return self.totals.budget_ns - self._spent_ns

    def quantum(self, record: LogRecord) -> list[str]:
        """Check the longest wait that a quantum may cause; a trial must fit the budget."""
        terms = record.fields
        delay_ms = terms["segment_upper_ms"] + self._signal_ms
        left_ms = self._left_ns(record.time_ns) / NS_PER_MS
        is_trial = terms["mode"] == _TRIAL
        self._covered_ns = 0 if is_trial else nanoseconds(delay_ms)
        wait_ms = min(self._park_wait_ms, (0 if is_trial else delay_ms) + left_ms)
        return broken(
            (
                terms["wait_ms"] == wait_ms,
                lambda: f"wait_ms is {terms['wait_ms']}, but {wait_ms} follows from the budget",
            ),
            (
                not is_trial or min(delay_ms, self._park_wait_ms) <= left_ms,
                lambda: (
                    f"a trial may cost {delay_ms} ms, but the wait budget has {left_ms} ms left"
                ),
            ),
        )

    def step(self) -> None:
        """End the cover of the newest QUANTUM: serving has had the device since."""
        self._covered_ns = 0

    def waited(self, record: LogRecord) -> list[str]:
        """Check a wait, and charge its excess."""
        fields = record.fields
        waited_ns, certified_ns, left_ns = (
            fields[name] for name in ("waited_ns", "certified_ns", "left_ns")
        )
        allowed_ns = {0, self._covered_ns}
        if certified_ns > 0:
            self._covered_ns = 0
        before_ns = self._left_ns(record.time_ns)
        excess_ns = max(waited_ns - certified_ns, 0)
        self.totals.count += 1
        if excess_ns > 0:
            self._excesses.append((record.time_ns // NS_PER_S, excess_ns))
            self._spent_ns += excess_ns
            self.totals.add(record.time_ns, excess_ns)
            if self._spent_ns > self.totals.worst_ns:
                self.totals.worst_ns, self.totals.worst_at_ns = self._spent_ns, record.time_ns
        return [
            *broken(
                (waited_ns >= 0, lambda: f"waited_ns must not be negative, is {waited_ns}"),
                (
                    certified_ns in allowed_ns,
                    lambda: (
                        f"certified_ns is {certified_ns}, but no certificate since the last step "
                        "and wait allows this"
                    ),
                ),
                (
                    excess_ns <= before_ns,
                    lambda: (
                        f"serving waited {excess_ns} ns beyond the certificate, but the budget "
                        f"had {before_ns} ns left"
                    ),
                ),
                (
                    left_ns == before_ns - excess_ns,
                    lambda: f"left_ns is {left_ns}, but {before_ns - excess_ns} ns are left",
                ),
            ),
            *self._borrower(fields["borrower"]),
        ]

    def evicted(self, record: LogRecord) -> list[str]:
        """Check the removal of a borrower."""
        self.totals.evicted += 1
        self._left_ns(record.time_ns)
        spent_ns = record.fields["spent_ns"]
        return [
            *broken(
                (
                    spent_ns == self._spent_ns,
                    lambda: f"spent_ns is {spent_ns}, but the waits sum to {self._spent_ns} ns",
                )
            ),
            *self._borrower(record.fields["borrower"]),
        ]

    def _borrower(self, borrower: int) -> list[str]:
        return broken(
            (0 < borrower < self._partitions, lambda: f"borrower {borrower} does not exist")
        )
