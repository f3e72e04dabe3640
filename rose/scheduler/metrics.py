"""Prometheus metrics of the scheduler. It needs the extra `metrics`."""

from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rose.scheduler.elastic import ElasticRolloutScheduler

_PREFIX: Final = "rose_scheduler_"
_STATES: Final = ("waiting", "environment", "queued", "running", "recalled")
_FATES: Final = ("finished", "given_up", "dropped")
# Help texts by field of `SchedulerStats`.
_COUNTERS: Final[Mapping[str, str]] = {
    "recalls": "Turns recalled from a worker.",
    "resumed": "Starts in the middle of a turn.",
    "reprefill_tokens": "Prompt tokens that were computed again.",
    "tokens_delivered": "Generated tokens, each counted once.",
    "tokens_ignored": "Tokens reported but not next in order.",
    "stale_events": "Worker events without effect: late, repeated or invalid.",
    "stale": "Trajectories that were too old when consumed.",
}
_GAUGES: Final[Mapping[str, str]] = {
    "length_bias": "Mean tokens of lost trajectories, divided by the mean tokens of all others.",
    "exposure_s": "Seconds of computing that the loss of one failure domain would cost a job.",
    "recovery_bound_s": "Seconds until all turns would run again if all loans were revoked now.",
}


class SchedulerMetrics(Collector):
    """Exports the state of one scheduler to Prometheus.

    Scrapes must run in the thread of the scheduler's event loop: call `generate_latest` in a
    request handler that runs on this loop.
    """

    def __init__(self, scheduler: ElasticRolloutScheduler) -> None:
        self._scheduler = scheduler

    def describe(self) -> list[Metric]:
        """Return nothing: the figures are known only at a scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the figures of the core and the driver."""
        stats, counts = self._scheduler.stats(), self._scheduler.counts()
        yield _gauge(
            "num_trajectories",
            "Trajectories that are not over.",
            {(state,): getattr(stats, state) for state in _STATES},
            "state",
        )
        yield _gauge(
            "used_kv_tokens",
            "Tokens of a worker's capacity grant that are promised to turns.",
            {(str(worker),): tokens for worker, tokens in stats.used_kv_tokens.items()},
            "instance",
        )
        fates = CounterMetricFamily(
            f"{_PREFIX}trajectories", "Trajectories that are over.", labels=["fate"]
        )
        for fate in _FATES:
            fates.add_metric([fate], getattr(counts, fate))
        yield fates
        turns = CounterMetricFamily(f"{_PREFIX}turns", "Turns that are done.", labels=["pool"])
        for kind, done in stats.turns_by_kind.items():
            turns.add_metric([kind.value], done)
        yield turns
        for name, text in _GAUGES.items():
            yield _gauge(name, text, {(): getattr(stats, name)})
        for name, text in _COUNTERS.items():
            yield CounterMetricFamily(f"{_PREFIX}{name}", text, value=getattr(stats, name))


def _gauge(
    name: str, text: str, values: Mapping[tuple[str, ...], float], *labels: str
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"{_PREFIX}{name}", text, labels=labels)
    for of, value in values.items():
        family.add_metric(of, value)
    return family
