"""What the scheduler counts, for Prometheus. It needs the extra `metrics`."""

from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rose.scheduler.elastic import ElasticRolloutScheduler

_PREFIX: Final = "rose_scheduler_"
_STATES: Final = ("waiting", "environment", "queued", "running", "recalled")
_FATES: Final = ("finished", "given_up", "dropped")
# By the fields of `SchedulerStats`.
_COUNTERS: Final[Mapping[str, str]] = {
    "recalls": "Turns that were taken away from a worker.",
    "resumed": "Starts in the middle of a turn.",
    "reprefill_tokens": "Tokens of prompts that were computed again.",
    "tokens_delivered": "Generated tokens, each once.",
    "tokens_ignored": "Tokens that were reported and were not the next ones.",
    "stale_events": "News of workers that changed nothing: late, doubled or without a meaning.",
    "stale": "Trajectories that were consumed when they were too old.",
}
_GAUGES: Final[Mapping[str, str]] = {
    "length_bias": "Mean tokens of trajectories that were lost, over that of all others.",
    "exposure_s": "Seconds of computing that the loss of one failure domain would cost a job.",
    "recovery_bound_s": "Seconds within which all turns run again if nothing were lent any more.",
}


class SchedulerMetrics(Collector):
    """Shows a registry of Prometheus what one scheduler does.

    Scrapes come from the thread of the scheduler's event loop: `generate_latest` in a handler of a
    server that runs there.
    """

    def __init__(self, scheduler: ElasticRolloutScheduler) -> None:
        self._scheduler = scheduler

    def describe(self) -> list[Metric]:
        """Return nothing: what is here is known when it is asked for."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Return what the core and the front count."""
        stats, counts = self._scheduler.stats(), self._scheduler.counts()
        yield _gauge(
            "num_trajectories",
            "Trajectories that are not over.",
            {(state,): getattr(stats, state) for state in _STATES},
            "state",
        )
        yield _gauge(
            "used_kv_tokens",
            "Promised of a worker's lease.",
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
