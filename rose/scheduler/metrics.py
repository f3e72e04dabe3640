"""What the scheduler counts, for Prometheus. It needs the extra `metrics`."""

from collections import Counter as Counts
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from rose.clock import Clock
from rose.scheduler.events import SchedulerStats, VersionPublished
from rose.scheduler.front_events import Begun, Ended, Entry, Registered
from rose.scheduler.rollouts import FrontCounts, Gone, Outcome, Rollouts
from rose.scheduler.seen_leases import SeenLeases
from rose.scheduler.turns import TurnResult
from rose.scheduler.watching import FrontWatch
from rose.scheduler.worker import LeaseChanged, TurnRequest, WorkerKind, WorkerLost
from rose.units import NS_PER_S

# Seconds: from a step of an idle core to one that holds up an event loop.
DECISION_BUCKETS: Final = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0)
STALENESS_BUCKETS: Final = (0.0, 1.0, 2.0, 3.0, 4.0, 8.0, 16.0)
_PREFIX: Final = "rose_scheduler_"
# The core's books are copied so often; more would cost more than a step.
_READ_EVERY_NS: Final = NS_PER_S

COUNTERS: Final[Mapping[str, str]] = {
    "recalls": "Turns that were taken away from a worker.",
    "resumed_turns": "Starts in the middle of a turn.",
    "reprefill_tokens": "Tokens of prompts that were computed again.",
    "tokens_delivered": "Generated tokens, each once.",
    "tokens_ignored": "Tokens that were reported and were not the next ones.",
    "stale_events": "News of workers that changed nothing: late, doubled or without a meaning.",
}


class SchedulerMetrics(FrontWatch, Collector):
    """Shows `registry` what one scheduler does. Scrapes may come from any thread.

    What only the core knows is as of a second before the last step at most.
    """

    def __init__(self, clock: Clock) -> None:
        self.registry = CollectorRegistry()
        self._clock = clock
        self._rollouts: Rollouts | None = None
        self._read_ns = 0
        # Replaced whole, and never changed: another thread may be reading.
        self._figures: tuple[SchedulerStats, FrontCounts] | None = None
        self._kinds: dict[int, str] = {}
        self._leased: set[int] = set()  # workers that reported a lease
        self._seen_leases = SeenLeases()
        self._jobs: dict[int, int] = {}  # by trajectory
        self._versions: dict[int, int] = {}  # the oldest of its tokens, by trajectory
        self._published: Counts[int] = Counts()
        self._decisions = Histogram(
            f"{_PREFIX}decision_seconds",
            "How long a step took, with what it wrote down and sent.",
            buckets=DECISION_BUCKETS,
            registry=self.registry,
        )
        self._staleness = Histogram(
            f"{_PREFIX}staleness_versions",
            "Versions that its oldest token was behind when a trajectory was finished.",
            buckets=STALENESS_BUCKETS,
            registry=self.registry,
        )
        self._turns = self._counter("turns", "Turns that are done.", "pool")
        self._parts = self._counter("turn_parts", "Turns, and rests of turns, begun.", "pool")
        self._salvaged = self._counter(
            "tokens_salvaged", "Tokens that a turn kept when it went on elsewhere."
        )
        self._revocations = self._counter(
            "lease_revocations", "Leases that were revoked, and workers that were lost.", "reason"
        )
        self._leases = Gauge(
            f"{_PREFIX}lease_kv_tokens",
            "Tokens of context that a worker's lease can hold.",
            ["pool", "instance"],
            registry=self.registry,
        )
        self.registry.register(self)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"{_PREFIX}{name}", text, labels, registry=self.registry)

    # ---- the front's task -----------------------------------------------------------------------

    def opened(self, rollouts: Rollouts) -> None:
        """Read from these from now on."""
        self._rollouts = rollouts
        for worker in rollouts.state.workers.values():
            self._kinds[worker.worker] = worker.kind.value
        for number, job in rollouts.counts().jobs.items():
            self._published[number] = job.published
        for course in rollouts.state.trajectories.values():
            self._jobs[course.number] = course.job
            for turn in course.turns:
                self._note_versions(turn)
        self._read()

    @override
    def begin(self, request: TurnRequest, worker: int, kind: WorkerKind) -> None:
        """Count a part of a turn."""
        self._parts.labels(pool=kind.value).inc()
        self._salvaged.inc(request.first_token)

    def heard(self, entry: Entry) -> None:
        """Count leases, and how stale finished trajectories are."""
        match entry:
            case Registered():
                self._kinds[entry.worker] = entry.kind.value
            case LeaseChanged() if entry.worker in self._kinds and self._seen_leases.is_news(entry):
                pool, instance = self._kinds[entry.worker], str(entry.worker)
                self._leased.add(entry.worker)
                gauge = self._leases.labels(pool=pool, instance=instance)
                gauge.set(max(0, entry.kv_tokens))
                if entry.kv_tokens == 0:
                    self._revocations.labels(reason="revoked").inc()
            case WorkerLost() if entry.worker in self._kinds:
                pool = self._kinds.pop(entry.worker)
                self._revocations.labels(reason="lost").inc()
                if entry.worker in self._leased:
                    self._leased.remove(entry.worker)
                    self._leases.remove(pool, str(entry.worker))
            case VersionPublished():
                self._published[entry.job] = max(self._published[entry.job], entry.version)
            case Begun():
                self._jobs[entry.trajectory] = entry.job
            case Ended(is_wanted=True):
                job = self._jobs.pop(entry.trajectory, 0)
                version = self._versions.pop(entry.trajectory, None)
                if version is not None:
                    self._staleness.observe(max(0, self._published[job] - version))

    def stepped(self, outcomes: Sequence[Outcome], seconds: float) -> None:
        """Count what came of a step."""
        self._decisions.observe(seconds)
        for outcome in outcomes:
            if isinstance(outcome, TurnResult):
                pool = self._kinds.get(outcome.workers[-1], "lost") if outcome.workers else "none"
                self._turns.labels(pool=pool).inc()
                self._note_versions(outcome)
            elif isinstance(outcome, Gone):
                self._versions.pop(outcome.trajectory, None)
                self._jobs.pop(outcome.trajectory, None)
        if self._clock.now_ns() >= self._read_ns:
            self._read()

    def _read(self) -> None:
        if self._rollouts is None:
            return
        counts = self._rollouts.counts()
        self._figures = (self._rollouts.stats(), counts)
        self._read_ns = self._clock.now_ns() + _READ_EVERY_NS

    def _note_versions(self, turn: TurnResult) -> None:
        if turn.versions:
            oldest = min(turn.versions)
            before = self._versions.get(turn.trajectory, oldest)
            self._versions[turn.trajectory] = min(before, oldest)

    # ---- threads that scrape --------------------------------------------------------------------

    def describe(self) -> list[Metric]:
        """Return nothing: what is here is known when it is asked for."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Return what the core and the front count."""
        if self._figures is None:
            return
        stats, counts = self._figures
        states = GaugeMetricFamily(
            f"{_PREFIX}num_trajectories", "Trajectories that are not over.", labels=["state"]
        )
        for state in ("waiting", "environment", "queued", "running", "recalled"):
            states.add_metric([state], getattr(stats, state))
        yield states
        fates = CounterMetricFamily(
            f"{_PREFIX}trajectories", "Trajectories that are over.", labels=["fate"]
        )
        for fate in ("finished", "given_up", "dropped"):
            fates.add_metric([fate], getattr(counts, fate))
        yield fates
        used = GaugeMetricFamily(
            f"{_PREFIX}used_kv_tokens", "Promised of a worker's lease.", labels=["instance"]
        )
        for worker, tokens in stats.used_kv_tokens.items():
            used.add_metric([str(worker)], tokens)
        yield used
        for name, text in COUNTERS.items():
            field = "resumed" if name == "resumed_turns" else name
            yield CounterMetricFamily(f"{_PREFIX}{name}", text, value=getattr(stats, field))
