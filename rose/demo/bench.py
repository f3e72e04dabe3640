"""The four arms of the demo: the same traffic without rollouts, with rollouts, and under rose."""

import copy
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from rose.clock import Clock
from rose.demo.brokered import Brokered
from rose.demo.circle_load import CircleLoad
from rose.demo.record import ARMS, BrokerRecord, CircleRecord, Revocation, WindowRecord
from rose.demo.remote_rollouts import RemoteRollouts
from rose.demo.replay import Arm, Replay, running
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
from rose.errors import InvalidArgument, Unavailable
from rose.executor import Cause, CoServing
from rose.memory import KVGeometry, choose_slab_bytes
from rose.rl.borrower_settings import BorrowerSettings
from rose.rl.circle_settings import CircleSettings
from rose.rl.feeder import RolloutFeeder
from rose.slo import SLO, Policy
from rose.traces import Trace
from rose.units import MS_PER_S, NS_PER_S


@dataclass(frozen=True, slots=True)
class RemoteSettings:
    """A borrower in a process of its own.

    Args:
        socket: where it attaches.
        model: what it loads: a preset or a folder.
    """

    socket: Path
    model: str


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """What the two engines of the demo are built with; sizes in bytes and tokens.

    Args:
        device: "cpu", "cuda" or "cuda:<n>".
        cores: the cores that are the device; empty on a GPU.
        pool_bytes: KV memory both share.
        reserve_bytes: what serving can always have.
        slo: of serving.
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
        remote: of a borrower in a process of its own; None for one in this process.
        has_broker: whether a broker decides how much the device lends.
    """

    device: str
    cores: frozenset[int]
    pool_bytes: int
    reserve_bytes: int
    slo: SLO
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
    remote: RemoteSettings | None = None
    has_broker: bool = False


@dataclass(frozen=True, slots=True)
class Felt:
    """What serving felt of the rollouts under rose.

    Args:
        blocked_ms: for each serving step that found a segment running, how long it waited.
        segment_ms: length of each segment; the warm-up counts in neither.
        pauses: how often a closed gate stopped rollouts.
        revocations: in the order of time.
        gave_back: why rose stopped lending, if it did.
    """

    blocked_ms: tuple[float, ...]
    segment_ms: tuple[float, ...]
    pauses: int
    revocations: tuple[Revocation, ...]
    gave_back: str | None


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


class Bench:
    """Both models, with and without rose, ready to run one window of one arm at a time."""

    def __init__(
        self,
        serving_model: Model,
        rollout_model: Model,
        device: CoServing,
        *,
        kv: tuple[KVGeometry, KVGeometry],
        settings: BenchSettings,
        clock: Clock,
    ) -> None:
        """Build four engines on an empty device; see `bench`, which also closes both.

        Args:
            serving_model: answers the trace.
            rollout_model: generates in the slack.
            device: just opened, with slabs that suit `kv`.
            kv: geometry of serving and of rollouts.
            settings: of everything else.
            clock: where time comes from.
        """
        self.device = device
        self._settings = settings
        self._replay = Replay(clock=clock, vocabulary=serving_model.config.vocab_size)
        plain, borrower = engine_configs(settings, clock)
        serving_kv, rollout_kv = kv
        self.serving_lane = device.serving(
            serving_kv,
            slo=settings.slo,
            reserve_bytes=settings.reserve_bytes,
            step_tokens=plain.max_batch_tokens,
            request_tokens=settings.request_tokens,
        )
        self._broker = Brokered(device, clock) if settings.has_broker else None
        stock_serving = stock_engine(
            serving_model, plain, cache_blocks=settings.pool_bytes // serving_kv.block_bytes
        )
        # Weights that change belong to the borrower alone, so the baseline has a copy as they were.
        weights = LiveWeights(rollout_model) if settings.circle else None
        stock_rollout = stock_engine(
            copy.deepcopy(rollout_model) if settings.circle else rollout_model,
            replace(borrower, sampling=False),
            cache_blocks=settings.pool_bytes // rollout_kv.block_bytes,
        )
        rose_serving = serving_engine(serving_model, self.serving_lane, plain)
        self._serving = dict.fromkeys(ARMS, stock_serving) | {"rose": rose_serving}
        self._circle: CircleLoad | None = None
        self._segment_ms: list[float] = []
        self._blocked_ms: list[float] = []
        self._engines = [stock_serving, rose_serving, stock_rollout]
        self._loads: dict[str, RolloutLoad] = {
            "share_all": self._feeder(stock_rollout, rollout_model)
        }
        if settings.remote is not None:
            device.listen(settings.remote.socket)
            self._loads["rose"] = _remote_rollouts(settings.remote, settings, borrower)
            return
        rose_rollout = rollout_engine(
            rollout_model,
            device.rollout(rollout_kv, limit_bytes=settings.pool_bytes),
            borrower,
            layers_per_segment=settings.layers_per_segment,
        )
        self._engines.append(rose_rollout)
        if settings.circle is not None and weights is not None:
            self._circle = CircleLoad(
                rose_rollout,
                weights,
                settings.circle,
                wait_s=settings.tool_wait_s,
                seats=settings.rollouts,
                clock=clock,
            )
        self._loads["rose"] = self._circle or self._feeder(rose_rollout, rollout_model)

    def _feeder(self, engine: Engine, model: Model) -> RolloutFeeder:
        return RolloutFeeder(
            engine,
            concurrency=self._settings.rollouts,
            prompt_tokens=self._settings.rollout_prompt_tokens,
            output_tokens=self._settings.rollout_output_tokens,
            vocabulary=model.config.vocab_size,
            seed=self._settings.seed,
        )

    def start(self) -> None:
        """Start all engine threads; rollouts are paused."""
        for engine in {self._serving["alone"], self._serving["rose"]}:
            engine.start()
        for load in self._loads.values():
            load.start()
        if self._broker is not None:
            self._broker.start()

    def capacity_rps(self, trace: Trace) -> float:
        """Measure what serving alone answers at saturation, in requests per second."""
        arm = self._arm("alone")
        return self._replay.capacity_rps(
            trace, arm, seed=self._settings.seed, prompts_seed=self._prompts_seed("alone", -1)
        )

    def rollouts_alone(self, duration_s: float) -> float:
        """Measure rollouts with the device to themselves, without rose, in tokens per second."""
        return self._replay.tokens_per_s(self._loads["share_all"], duration_s)

    def run(self, trace: Trace, *, arm: str, window: int) -> WindowRecord:
        """Replay `trace` under `arm`.

        Raises:
            Unavailable: an engine died or a request did not finish.
        """
        load = self._loads.get(arm)
        seed = self._prompts_seed(arm, window)
        if load is None:
            return self._replay.window(trace, self._arm(arm), window=window, seed=seed)
        if arm == "rose":
            self.device.gate.drain_segments_ms()  # Those of commits in other arms.
        with running(load):
            record = self._replay.window(trace, self._arm(arm), window=window, seed=seed)
        if arm == "rose":
            record = replace(record, rollout_busy_s=self._note_felt(is_measured=window >= 0))
        if load.failures:
            raise Unavailable(f"rollouts of arm {arm} failed: {'; '.join(load.failures)}")
        return record

    def _note_felt(self, *, is_measured: bool) -> float:
        """Keep what serving felt in a window; return how long segments ran, in seconds."""
        segment_ms = self.device.gate.drain_segments_ms()
        blocked_ms = list(self.serving_lane.blocked_ms)
        self.serving_lane.blocked_ms.clear()
        if is_measured:
            self._segment_ms += segment_ms
            self._blocked_ms += blocked_ms
        return sum(segment_ms) / MS_PER_S

    def _arm(self, name: str) -> Arm:
        lane = self.serving_lane if name == "rose" else None
        return Arm(name, self._serving[name], lane, self._loads.get(name))

    def _prompts_seed(self, arm: str, window: int) -> int:
        """The same lengths and times in every arm, other token ids: none profits from the last."""
        return hash((self._settings.seed, window, ARMS.index(arm))) & 0xFFFFFFFF

    def felt(self) -> Felt:
        """Say what rollouts did to serving, over all windows of the arm `rose` so far."""
        stats = self.device.gate.stats()
        return Felt(
            blocked_ms=tuple(self._blocked_ms),
            segment_ms=tuple(self._segment_ms),
            pauses=stats.pauses,
            revocations=tuple(
                Revocation(
                    at_s=one.asked_ns / NS_PER_S,
                    slabs=one.slabs_returned,
                    latency_ms=one.latency_ms,
                    aborted_steps=one.aborted_steps,
                )
                for one in self.device.lender.history
                if one.cause is Cause.PRESSURE
            ),
            gave_back=self.device.gave_back,
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


def _remote_rollouts(
    remote: RemoteSettings, settings: BenchSettings, config: EngineConfig
) -> RemoteRollouts:
    """Say how the borrower's process builds the engine that this one would have built."""
    return RemoteRollouts(
        BorrowerSettings(
            socket=str(remote.socket),
            model=remote.model,
            seed=settings.seed,
            cores=tuple(sorted(settings.cores)),
            limit_bytes=settings.pool_bytes,
            max_batch_tokens=config.max_batch_tokens,
            spare_share=config.spare_share,
            layers_per_segment=settings.layers_per_segment,
            rollouts=settings.rollouts,
            prompt_tokens=settings.rollout_prompt_tokens,
            output_tokens=settings.rollout_output_tokens,
        )
    )


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
def bench(
    serving_model: Model,
    rollout_model: Model,
    settings: BenchSettings,
    clock: Clock,
) -> Iterator[Bench]:
    """Open a device, build a `Bench` on it, start it, and close both whatever happens."""
    if settings.cores:
        run_on_cores(len(settings.cores))
    plain, borrower = engine_configs(settings, clock)
    usable = os.sched_getaffinity(0)
    # Load generation and bookkeeping live elsewhere; the threads they start inherit that, and the
    # engines' threads then move to the device.
    os.sched_setaffinity(0, usable - settings.cores)
    try:
        kv = kv_geometry(serving_model, plain), kv_geometry(rollout_model, borrower)
        with CoServing.open(
            settings.device,
            pool_bytes=settings.pool_bytes,
            slab_bytes=choose_slab_bytes(*kv),
            log_path=settings.log_path,
            policy=settings.policy,
        ) as device:
            built = Bench(
                serving_model, rollout_model, device, kv=kv, settings=settings, clock=clock
            )
            try:
                built.start()
                yield built
            finally:
                built.close()
    finally:
        os.sched_setaffinity(0, usable)
