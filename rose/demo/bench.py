"""The four arms of the demo: the same traffic without rollouts, with rollouts, and under rose."""

import copy
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final, TypeVar

import numpy as np

from rose.clock import Clock
from rose.demo.brokered import Brokered
from rose.demo.circle_load import CircleLoad
from rose.demo.record import (
    ARMS,
    BrokerRecord,
    CircleRecord,
    Lending,
    Revocation,
    Slice,
    Solo,
)
from rose.demo.replay import Arm, Replay, probing, running
from rose.demo.steps import TimedSteps
from rose.demo.targets import Calibration
from rose.demo.workload import RolloutLoad
from rose.engines.torch import run_on_cores
from rose.engines.transformers import (
    Engine,
    EngineConfig,
    LiveWeights,
    Model,
    kv_geometry,
    rollout_engine,
    serving_engine,
    stock_engine,
)
from rose.errors import DeadlineExceeded, InvalidArgument, Unavailable, check
from rose.executor import Cause, CoServing, DeviceReading
from rose.memory import KVGeometry, choose_slab_bytes
from rose.rl.circle_settings import CircleSettings
from rose.rl.feeder import RolloutFeeder
from rose.slo import SLO, Policy
from rose.traces import Trace
from rose.units import MS_PER_S, NS_PER_S, ceil_div

T = TypeVar("T", int, float)

# Full chunks that are timed before the targets are chosen; the first prompts are thrown away.
_CHUNKS: Final = 52
_WARM_UP_PROMPTS: Final = 3
_CALIBRATION_OUTPUTS: Final = 8
_EVIDENCE_MS: Final = 60_000.0


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """What the two engines of the demo are built with; sizes in bytes and tokens.

    Args:
        device: "cpu", "cuda" or "cuda:<n>".
        cores: the cores that are the device; empty on a GPU.
        pool_bytes: KV memory both share.
        reserve_bytes: what serving can always have.
        policy: the knobs of rose.
        layers_per_segment: decoder layers of a rollout between two gates; 0.5 is possible.
        rollouts: generations in flight.
        rollout_prompt_tokens: length of each.
        rollout_output_tokens: length of each.
        request_tokens: longest prompt serving accepts.
        log_path: where the certificates go.
        seed: of prompts.
        circle: of what the arm `rose` rolls out; None for generations of a fixed length there too.
        tool_wait_s: `(trajectory, turn)` to how long its tool takes.
        has_broker: whether a broker decides how much the device lends.
    """

    device: str
    cores: frozenset[int]
    pool_bytes: int
    reserve_bytes: int
    policy: Policy
    layers_per_segment: float
    rollouts: int
    rollout_prompt_tokens: int
    rollout_output_tokens: int
    request_tokens: int
    log_path: Path
    seed: int
    circle: CircleSettings | None
    tool_wait_s: Callable[[int, int], float]
    has_broker: bool = False


def engine_configs(settings: BenchSettings, clock: Clock) -> tuple[EngineConfig, EngineConfig]:
    """Say how serving and the borrower are built; small prefill chunks keep segments alike."""
    cores = settings.cores or None
    plain = EngineConfig(cores=cores, clock=clock)
    borrower = EngineConfig(
        cores=cores,
        clock=clock,
        prefix_cache=True,
        # A segment of the circle's smaller policy is as long with twice the tokens.
        max_batch_tokens=32 if settings.circle is None else 64,
        spare_share=0.1,
        sampling=settings.circle is not None,
    )
    return plain, borrower


class Alone:
    """Serving by itself on the device, with the time of each of its steps.

    Its life: made → `start` → `capacity_rps` → `calibrate` → `slice`* → the engine is stopped.
    """

    def __init__(self, model: Model, settings: BenchSettings, clock: Clock) -> None:
        """Build the stock engine."""
        plain, _ = engine_configs(settings, clock)
        self.kv = kv_geometry(model, plain)
        self.step_tokens = plain.max_batch_tokens
        self.engine = stock_engine(
            model,
            plain,
            cache_blocks=settings.pool_bytes // self.kv.block_bytes,
            processor=TimedSteps,
        )
        loop = self.engine.processor
        check(isinstance(loop, TimedSteps), "serving alone has a loop of another kind")
        self.steps: TimedSteps = loop
        self._settings = settings
        self._replay = Replay(clock=clock, vocabulary=model.config.vocab_size)

    def _arm(self) -> Arm:
        return Arm("alone", self.engine, None, None)

    def capacity_rps(self, trace: Trace) -> float:
        """Measure what serving answers at saturation, once the first steps are thrown away."""
        self._longest(_WARM_UP_PROMPTS)
        self._replay.capacity_rps(trace, self._arm(), seed=self._settings.seed)
        return self._replay.capacity_rps(trace, self._arm(), seed=self._settings.seed)

    def calibrate(self, piece: Trace) -> Calibration:
        """Time steps of the largest shapes, and requests at the load."""
        self.steps.drain()
        chunks = self._settings.request_tokens // self.step_tokens
        self._longest(ceil_div(_CHUNKS, chunks))
        steps = self.steps.drain()
        requests = self._replay.slice(
            piece, self._arm(), number=-1, seed=self._settings.seed
        ).requests
        later_ms = [one.tpot_ms for one in requests if one.tpot_ms is not None]
        return Calibration(
            steps,
            float(np.percentile([one.ttft_ms for one in requests], 99)),
            float(np.percentile(later_ms or steps.decode_ms, 99)),
        )

    def _longest(self, count: int) -> None:
        """Serve so many of the longest requests, one after the other."""
        for number in range(count):
            one = Trace(
                arrival_s=np.zeros(1),
                prompt_tokens=np.full(1, self._settings.request_tokens),
                output_tokens=np.full(1, _CALIBRATION_OUTPUTS),
                name="longest",
            )
            self._replay.slice(one, self._arm(), number=-1, seed=self._settings.seed + number)


class Bench:
    """Both models, with and without rose, ready to run one slice of one arm at a time."""

    def __init__(
        self,
        serving_model: Model,
        rollout_model: Model,
        device: CoServing,
        *,
        alone: Alone,
        slo: SLO,
        rollout_kv: KVGeometry,
        settings: BenchSettings,
        clock: Clock,
    ) -> None:
        """Build three engines on an empty device; see `bench`, which also closes both.

        Args:
            serving_model: answers the trace.
            rollout_model: generates in the slack.
            device: just opened, with slabs that suit both models.
            alone: the running engine of serving alone.
            slo: serving's targets.
            rollout_kv: geometry of rollouts.
            settings: of everything else.
            clock: where time comes from.
        """
        self.device = device
        self._settings = settings
        self._alone = alone
        self._replay = Replay(
            clock=clock, vocabulary=serving_model.config.vocab_size, tpot_ms=slo.tpot_ms
        )
        plain, borrower = engine_configs(settings, clock)
        self.serving_lane = device.serving(
            alone.kv,
            slo=slo,
            reserve_bytes=settings.reserve_bytes,
            step_tokens=plain.max_batch_tokens,
            request_tokens=settings.request_tokens,
        )
        self._broker = Brokered(device, clock) if settings.has_broker else None
        # Weights that change belong to the borrower alone, so the baseline has a copy as they were.
        weights = LiveWeights(rollout_model) if settings.circle else None
        stock_rollout = stock_engine(
            copy.deepcopy(rollout_model) if settings.circle else rollout_model,
            replace(borrower, sampling=False),
            cache_blocks=settings.pool_bytes // rollout_kv.block_bytes,
        )
        rose_serving = serving_engine(serving_model, self.serving_lane, plain)
        self._serving = dict.fromkeys(ARMS, alone.engine) | {"rose": rose_serving}
        self._circle: CircleLoad | None = None
        rose_rollout = rollout_engine(
            rollout_model,
            device.rollout(rollout_kv, limit_bytes=settings.pool_bytes),
            borrower,
            layers_per_segment=settings.layers_per_segment,
        )
        self._engines = [rose_serving, stock_rollout, rose_rollout]
        if settings.circle is not None and weights is not None:
            self._circle = CircleLoad(
                rose_rollout,
                weights,
                settings.circle,
                wait_s=settings.tool_wait_s,
                seats=settings.rollouts,
                clock=clock,
            )
        self._loads: dict[str, RolloutLoad] = {
            "share_all": self._feeder(stock_rollout, rollout_model),
            "rose": self._circle or self._feeder(rose_rollout, rollout_model),
        }
        self._refusals: Counter[str] = Counter()
        self._refused_s: Counter[str] = Counter()
        self._granted_s = 0.0

    def _feeder(self, engine: Engine, model: Model) -> RolloutFeeder:
        return RolloutFeeder(
            engine,
            concurrency=self._settings.rollouts,
            prompt_tokens=self._settings.rollout_prompt_tokens,
            output_tokens=self._settings.rollout_output_tokens,
            vocabulary=model.config.vocab_size,
            seed=self._settings.seed,
        )

    def warm_up(self, on_progress: Callable[[int, int], None]) -> None:
        """Start serving under rose, and gather the evidence that certificates rest on."""
        engine = self._serving["rose"]
        engine.start()
        if engine.prober is not None:
            # Without enough evidence the probes of later slices go on, and refusals are counted.
            with suppress(DeadlineExceeded):
                engine.prober.warm_up(timeout_ms=_EVIDENCE_MS, on_progress=on_progress)
            engine.prober.stop()

    def start(self) -> None:
        """Start the loads; rollouts are paused."""
        for load in self._loads.values():
            load.start()
        if self._broker is not None:
            self._broker.start()

    def solo(self, arm: str, duration_s: float) -> Solo:
        """Let the rollouts of an arm have the device to themselves."""
        if arm != "rose":
            return self._replay.solo(arm, self._loads[arm], duration_s)
        self.device.gate.drain_segments_ms()
        with probing(self._serving[arm]):
            found = self._replay.solo(arm, self._loads[arm], duration_s)
        self._check_alive(arm)
        return replace(found, segments_s=sum(self.device.gate.drain_segments_ms()) / MS_PER_S)

    def run(self, trace: Trace, *, arm: str, number: int) -> Slice:
        """Replay `trace` under `arm`.

        Raises:
            Unavailable: an engine died or a request did not finish.
        """
        load = self._loads.get(arm)
        seed = hash((self._settings.seed, number, ARMS.index(arm))) & 0xFFFFFFFF
        lane = self.serving_lane if arm == "rose" else None
        one = Arm(arm, self._serving[arm], lane, load)
        if load is None:
            self._alone.steps.drain()
            found = self._replay.slice(trace, one, number=number, seed=seed)
            times = self._alone.steps.drain()
            return replace(found, chunk_ms=times.chunk_ms, decode_ms=times.decode_ms)
        before = self._begin_rose() if arm == "rose" else None
        with probing(self._serving[arm]), running(load):
            found = self._replay.slice(trace, one, number=number, seed=seed)
        self._check_alive(arm)
        return found if before is None else self._end_rose(found, before)

    def _check_alive(self, arm: str) -> None:
        if failures := self._loads[arm].failures:
            raise Unavailable(f"rollouts of arm {arm} failed: {'; '.join(failures)}")

    def _begin_rose(self) -> tuple[DeviceReading, int]:
        self.device.gate.drain_segments_ms()  # Those of commits in other arms.
        self.serving_lane.blocked_ms.clear()
        return self.device.reading(), self.device.gate.stats().pauses

    def _end_rose(self, found: Slice, before: tuple[DeviceReading, int]) -> Slice:
        was, pauses = before
        now = self.device.reading()
        if found.round >= 0:
            self._refusals.update(_since(now.refusals, was.refusals))
            self._refused_s.update(_since(now.refused_s, was.refused_s))
            self._granted_s += now.granted_s - was.granted_s
        segment_ms = tuple(self.device.gate.drain_segments_ms())
        return replace(
            found,
            segment_ms=segment_ms,
            segments=len(segment_ms),
            blocked_ms=tuple(self.serving_lane.blocked_ms),
            pauses=self.device.gate.stats().pauses - pauses,
        )

    def lending(self) -> Lending:
        """Say what the device refused in the slices of the arm `rose`, and why it did last."""
        binding = self.device.reading().binding
        return Lending(
            refusals=dict(self._refusals),
            refused_s=dict(self._refused_s),
            granted_s=self._granted_s,
            binding=None if binding is None else {**asdict(binding), "sentence": binding.sentence},
        )

    def revocations(self) -> tuple[Revocation, ...]:
        """Say what was taken back under pressure."""
        return tuple(
            Revocation(
                at_s=one.asked_ns / NS_PER_S,
                slabs=one.slabs_returned,
                latency_ms=one.latency_ms,
                aborted_steps=one.aborted_steps,
            )
            for one in self.device.lender.history
            if one.cause is Cause.PRESSURE
        )

    def broker(self) -> BrokerRecord | None:
        """Say what the broker decided, if there is one."""
        return None if self._broker is None else self._broker.record()

    def circle(self) -> CircleRecord | None:
        """Stop the circle, if there is one, and say what it did."""
        if self._circle is None:
            return None
        self._circle.stop()
        return self._circle.record()

    def close(self) -> None:
        """Stop every engine."""
        with ExitStack() as stack:  # Whatever fails, all are stopped.
            for engine in self._engines:
                stack.callback(engine.stop)
            for load in self._loads.values():
                stack.callback(load.stop)
            if self._broker is not None:
                stack.callback(self._broker.close)


def _since(now: Mapping[str, T], was: Mapping[str, T]) -> dict[str, T]:
    return {name: value - was.get(name, 0) for name, value in now.items()}


def choose_cores(count: int) -> frozenset[int]:
    """Choose the cores that are the device: the last ones this process may use.

    Raises:
        InvalidArgument: there is none left for the load generator.
    """
    usable = sorted(os.sched_getaffinity(0))
    if not 0 < count < len(usable):
        raise InvalidArgument(
            f"--cores {count} is not possible with {len(usable)} usable cores: "
            "the device takes at least one, and one must be left for the load generator"
        )
    return frozenset(usable[-count:])


@contextmanager
def on_device_cores(settings: BenchSettings) -> Iterator[None]:
    """Keep this process off the device's cores; only the engines' threads move there."""
    if settings.cores:
        run_on_cores(len(settings.cores))
    usable = os.sched_getaffinity(0)
    os.sched_setaffinity(0, usable - settings.cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, usable)


@contextmanager
def serving_alone(model: Model, settings: BenchSettings, clock: Clock) -> Iterator[Alone]:
    """Run serving by itself until the block ends."""
    alone = Alone(model, settings, clock)
    alone.engine.start()
    try:
        yield alone
    finally:
        alone.engine.stop()


@contextmanager
def bench(  # noqa: PLR0917 (parts)
    serving_model: Model,
    rollout_model: Model,
    alone: Alone,
    slo: SLO,
    settings: BenchSettings,
    clock: Clock,
) -> Iterator[Bench]:
    """Open a device and build a `Bench` on it; close both whatever happens."""
    _, borrower = engine_configs(settings, clock)
    rollout_kv = kv_geometry(rollout_model, borrower)
    with CoServing.open(
        settings.device,
        pool_bytes=settings.pool_bytes,
        slab_bytes=choose_slab_bytes(alone.kv, rollout_kv),
        log_path=settings.log_path,
        policy=settings.policy,
    ) as device:
        built = Bench(
            serving_model,
            rollout_model,
            device,
            alone=alone,
            slo=slo,
            rollout_kv=rollout_kv,
            settings=settings,
            clock=clock,
        )
        try:
            yield built
        finally:
            built.close()
