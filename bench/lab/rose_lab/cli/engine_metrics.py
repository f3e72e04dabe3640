"""Parses and checks the `/metrics` of vLLM and SGLang."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from rose.errors import CorruptData
from rose_lab.broker.engine_reader import EngineMetrics, LatencyHistogram

# Each rank reports some samples; no engine has so many ranks that it reports more than this.
_LINES_MAX: Final = 20_000
_TOKENS_MAX: Final = 1 << 40
# Rounding may report a full pool as slightly more than 1.
_SHARE_SLACK: Final = 0.02

_Samples: TypeAlias = dict[str, list[Sample]]


@dataclass(frozen=True, slots=True)
class _Dialect:
    """Metric names of one engine; where a tuple lists several, the first name present is used."""

    engine: str
    prefix: str
    kv_used: tuple[str, ...]
    running: str
    waiting: str
    preempted: tuple[str, ...]
    ttft: tuple[str, ...]
    tpot: tuple[str, ...]
    kv_tokens: Callable[[_Samples], int | None]


def _vllm_kv_tokens(samples: _Samples) -> int | None:
    """Multiply block count by block size, which are labels of an info sample."""
    tokens = 0
    for sample in samples.get("vllm:cache_config_info", []):
        blocks, size = (sample.labels.get(name, "") for name in ("num_gpu_blocks", "block_size"))
        if not (blocks.isdecimal() and size.isdecimal() and len(blocks + size) < 16):
            return None
        tokens += int(blocks) * int(size)
    return tokens if 0 < tokens <= _TOKENS_MAX else None


def _sglang_kv_tokens(samples: _Samples) -> int | None:
    found = samples.get("sglang:max_total_num_tokens", [])
    tokens = sum(sample.value for sample in found)
    return int(tokens) if 0 < tokens <= _TOKENS_MAX else None


_DIALECTS: Final = (
    _Dialect(
        engine="vLLM",
        prefix="vllm:",
        kv_used=("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        running="vllm:num_requests_running",
        waiting="vllm:num_requests_waiting",
        preempted=("vllm:num_preemptions_total",),
        ttft=("vllm:time_to_first_token_seconds",),
        tpot=("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
        kv_tokens=_vllm_kv_tokens,
    ),
    _Dialect(
        engine="SGLang",
        prefix="sglang:",
        kv_used=("sglang:token_usage",),
        running="sglang:num_running_reqs",
        waiting="sglang:num_queue_reqs",
        preempted=("sglang:num_retracted_requests_total",),
        ttft=("sglang:time_to_first_token_seconds",),
        tpot=("sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"),
        kv_tokens=_sglang_kv_tokens,
    ),
)


def read_metrics(text: str) -> EngineMetrics:
    """Parse an engine's metrics.

    Raises:
        CorruptData: the engine is unknown, or a metric is missing or invalid; the message says
            which.
    """
    lines = text.splitlines()
    for dialect in _DIALECTS:
        if wanted := [line for line in lines if line.startswith(dialect.prefix)]:
            return _read(_samples(wanted), dialect)
    raise CorruptData("there are no metrics of vLLM (vllm:...) or SGLang (sglang:...)")


def _read(samples: _Samples, dialect: _Dialect) -> EngineMetrics:
    used = _values(samples, dialect.kv_used)
    if not used:
        raise CorruptData(f"{dialect.engine} does not report {dialect.kv_used[0]}")
    if not 0 <= max(used) <= 1 + _SHARE_SLACK:
        raise CorruptData(
            f"{dialect.kv_used[0]} is {max(used):g}, which is not a share from 0 to 1"
        )
    return EngineMetrics(
        engine=dialect.engine,
        model=_model(samples),
        kv_used=min(1.0, max(used)),
        kv_tokens=dialect.kv_tokens(samples),
        running=_requests(samples, dialect.running),
        waiting=_requests(samples, dialect.waiting),
        preempted=sum(_values(samples, dialect.preempted)),
        ttft=_histogram(samples, dialect.ttft),
        tpot=_histogram(samples, dialect.tpot),
    )


def _samples(lines: Sequence[str]) -> _Samples:
    if len(lines) > _LINES_MAX:
        raise CorruptData(
            f"there are {len(lines)} samples, but no engine has more than {_LINES_MAX}"
        )
    found: _Samples = defaultdict(list)
    try:
        for family in text_string_to_metric_families("\n".join(lines) + "\n"):
            for sample in family.samples:
                found[sample.name].append(sample)
    except (ValueError, KeyError, IndexError, AttributeError, TypeError) as error:
        raise CorruptData(f"this is not the text format of Prometheus: {error}") from None
    return found


def _values(samples: _Samples, names: Iterable[str]) -> list[float]:
    """Return the values of the first name present; all must be finite and not negative."""
    for name in names:
        values = [sample.value for sample in samples.get(name, [])]
        if any(not (math.isfinite(value) and value >= 0) for value in values):
            raise CorruptData(f"{name} must be a finite number of at least 0")
        if values:
            return values
    return []


def _requests(samples: _Samples, name: str) -> int:
    values = _values(samples, (name,))
    if not values:
        raise CorruptData(f"{name} is missing")
    return math.ceil(min(sum(values), 1e9))


def _model(samples: _Samples) -> str:
    names = (sample.labels.get("model_name", "") for found in samples.values() for sample in found)
    return next((name for name in names if name), "")


def _histogram(samples: _Samples, names: tuple[str, ...]) -> LatencyHistogram:
    for name in names:
        found = list(_labelled(samples, name))
        if found:
            return _summed(found)
    raise CorruptData(f"the histogram {names[0]} is missing")


def _summed(histograms: Sequence[LatencyHistogram]) -> LatencyHistogram:
    """Return the sum of the histograms, since each rank of an engine counts separately."""
    bounds_s = histograms[0].bounds_s
    if any(one.bounds_s != bounds_s for one in histograms):
        raise CorruptData("the histograms of one latency have different buckets")
    counts = zip(*(one.counts for one in histograms), strict=True)
    return LatencyHistogram(bounds_s, tuple(map(sum, counts)))


def _labelled(samples: _Samples, name: str) -> Iterator[LatencyHistogram]:
    """Yield one histogram per label set."""
    buckets: dict[tuple[tuple[str, str], ...], dict[float, float]] = defaultdict(dict)
    for sample in samples.get(f"{name}_bucket", []):
        labels = dict(sample.labels)
        try:
            bound_s = float(labels.pop("le", ""))
        except ValueError:
            raise CorruptData(f"a bucket of {name} has no upper bound (label le)") from None
        buckets[tuple(sorted(labels.items()))][bound_s] = sample.value
    for counts in buckets.values():
        bounds_s, at_or_below = zip(*sorted(counts.items()), strict=True)
        yield LatencyHistogram(bounds_s, at_or_below)
