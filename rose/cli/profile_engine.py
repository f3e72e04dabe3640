"""Measure an engine: ask its `/metrics` again and again, and keep what it says."""

from typing import Final
from urllib.parse import SplitResult

from rose.cli.engine_metrics import read_metrics
from rose.cli.engine_page import endpoint_of, fetch_text
from rose.cli.profile_report import Compute, Measured, Pool, ProfileAsked
from rose.clock import Clock
from rose.demo.progress import Phases
from rose.errors import CorruptData, InvalidArgument, Unavailable
from rose.memory.model_shape import KVDtype
from rose.memory.presets import find_model
from rose.scheduler.broker import Observation
from rose.scheduler.broker.engine_reader import EngineMetrics, EngineReader
from rose.slo import SLO
from rose.units import MS_PER_S, NS_PER_MS

_HOW: Final = (
    "Compute is an estimate: all of the time in which no request ran, and of the rest the part of "
    "the target per token that 99 of 100 steps left. Certificates look at every step by itself, "
    "and steps grow when requests stay longer, so what they grant may be less or more."
)
# So many readings in a row that fail are an engine that is gone.
_FAILURES_MAX: Final = 5
_BF16: Final = KVDtype(2)


def measure_engine(asked: ProfileAsked, clock: Clock, shown: Phases) -> Measured:
    """Read the engine until the time is over, or somebody interrupts.

    Raises:
        InvalidArgument: an option is of traces only, the URL is none, or the size of the pool is
            not known.
        Unavailable: the first reading failed, or too many in a row.
        CorruptData: the first reading made no sense.
    """
    for name in ("load", "gpu", "noise"):
        if getattr(asked, name) is not None:
            raise InvalidArgument(f"--{name} is of a trace: an engine has its own")
    endpoint = endpoint_of(asked.source)
    first = read_metrics(fetch_text(endpoint, clock))
    pool = _pool(asked, first)
    readings = _Readings(asked, endpoint, clock, EngineReader(pool.device(asked.slos[0])))
    try:
        is_complete = readings.run(shown)
    except KeyboardInterrupt:
        is_complete = False
    return Measured(
        source=asked.source,
        kind="engine",
        how=_HOW,
        pool=pool,
        observations=tuple(readings.seen),
        compute=tuple(_compute(readings.seen, slo) for slo in asked.slos),
        slos=asked.slos,
        every_ms=asked.every_s * MS_PER_S,
        failures=tuple(readings.failures),
        settings={
            "engine": first.engine,
            "model": first.model or asked.model or "-",
            "seconds": asked.seconds,
            "every_s": asked.every_s,
        },
        is_complete=is_complete,
    )


class _Readings:
    """What has been read so far; an interrupt keeps it."""

    def __init__(
        self, asked: ProfileAsked, endpoint: SplitResult, clock: Clock, reader: EngineReader
    ) -> None:
        self.seen: list[Observation] = []
        self.failures: list[tuple[float, str]] = []
        self._asked, self._endpoint, self._clock = asked, endpoint, clock
        self._reader = reader
        self._began_ms = self._now_ms()
        self._failed = 0  # in a row

    def run(self, shown: Phases) -> bool:
        """Read until the time is over; False if the engine went away before."""
        number = 0
        while self._elapsed_s() <= self._asked.seconds:
            said = self._read()
            shown.advance(said, done=self._elapsed_s(), wanted=self._asked.seconds)
            if self._failed >= _FAILURES_MAX:
                if not self.seen:
                    raise Unavailable(said)
                return False
            number += 1
            rest_s = number * self._asked.every_s - self._elapsed_s()
            if rest_s > 0:
                self._clock.sleep(rest_s)
        return True

    def _read(self) -> str:
        at_ms = self._now_ms() - self._began_ms
        try:
            page = fetch_text(self._endpoint, self._clock)
            said = read_metrics(page)
        except (Unavailable, CorruptData) as error:
            self._failed += 1
            self.failures.append((at_ms, str(error)))
            return str(error)
        self._failed = 0
        self.seen.append(self._reader.observe(said, at_ms))
        return f"{said.running} running, {said.waiting} waiting, KV {said.kv_used:.0%}"

    def _now_ms(self) -> float:
        return self._clock.now_ns() / NS_PER_MS

    def _elapsed_s(self) -> float:
        return (self._now_ms() - self._began_ms) / MS_PER_S


def _pool(asked: ProfileAsked, said: EngineMetrics) -> Pool:
    """Return the pool.

    Raises:
        InvalidArgument: neither the user nor the engine says how large it is.
    """
    kv_bytes = asked.kv_bytes
    if kv_bytes is None:
        if said.kv_tokens is None:
            raise InvalidArgument(
                f"{asked.source} does not say how many tokens its KV pool holds; give --kv-gib"
            )
        kv_bytes = said.kv_tokens * token_bytes(asked.model or said.model)
    return asked.pool(kv_bytes)


def token_bytes(model: str) -> int:
    """Return the KV bytes of a token in bf16.

    Args:
        model: a name that rose knows, with or without its publisher; or a config.json.

    Raises:
        InvalidArgument: the model is not known.
    """
    try:
        shape = find_model(model)
    except InvalidArgument:
        try:
            shape = find_model(model.rsplit("/", 1)[-1].removesuffix("-Instruct"))
        except InvalidArgument:
            raise InvalidArgument(
                f"the engine serves '{model}', of which rose knows no shape; give --kv-gib, or "
                f"--model with a config.json"
            ) from None
    groups = shape.groups(block_tokens=1, kv=_BF16, tp=1)
    return sum(group.geometry.bytes_per_token for group in groups)


def _compute(seen: list[Observation], slo: SLO) -> Compute:
    if not seen:
        return Compute(share=None, met_alone=None)
    shares = [_share(one, slo) for one in seen]
    met = [is_met for is_met in (_is_met(one, slo) for one in seen) if is_met is not None]
    known = [share for share in shares if share is not None]
    return Compute(
        share=sum(known) / len(known) if known else None,
        met_alone=sum(met) / len(met) if met else None,
    )


def _share(seen: Observation, slo: SLO) -> float | None:
    """Return the share of the device that was free around one reading; None if it does not say."""
    if not (seen.running or seen.waiting):
        return 1.0
    if seen.tpot_ms_p99 is None:
        return None
    if _is_met(seen, slo) is False:
        return 0.0
    # Not the mean: a prompt beside makes a step long, and waiting makes batches larger.
    return max(0.0, 1 - seen.tpot_ms_p99 / slo.tpot_ms)


def _is_met(seen: Observation, slo: SLO) -> bool | None:
    tails = [
        (p99_ms, target_ms)
        for p99_ms, target_ms in ((seen.ttft_ms_p99, slo.ttft_ms), (seen.tpot_ms_p99, slo.tpot_ms))
        if p99_ms is not None
    ]
    return all(p99_ms <= target_ms for p99_ms, target_ms in tails) if tails else None
