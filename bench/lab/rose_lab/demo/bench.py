"""The engines of all arms of an experiment; an engine is idle until a slice of its arm begins."""

import copy
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np

from rose.clock import Clock
from rose.engines.transformers import Engine, LiveWeights, Model
from rose.engines.transformers.processor import DeviceProcessor
from rose.errors import check
from rose.scheduler.worker import WorkerKind
from rose.slo import SLO
from rose.units import NS_PER_MS, ceil_div
from rose_lab.demo.environments import ToolWaits
from rose_lab.demo.governed import GOVERNED, GovernedPair, LeastOfAll
from rose_lab.demo.record import RlLoopRecord, Slice, StepSamples
from rose_lab.demo.replay import ArmEngines, CountIn, Replay
from rose_lab.demo.rl.settings import RolloutLimits
from rose_lab.demo.rose_device import RoseDevice
from rose_lab.demo.schemes import CONTROL, SHARE_ALL, Scheme
from rose_lab.demo.settings import (
    REQUEST_TOKENS,
    ROLLOUTS,
    BenchSettings,
    rollout_tenant,
    serving_tenant,
)
from rose_lab.demo.targets import Calibration
from rose_lab.demo.workload import RlLoopLoad, RolloutFeeder, RolloutLoad, TurnFeeder
from rose_lab.traces import Trace


class TimedSteps(DeviceProcessor):
    """A stock engine's loop that times its steps as rose's serving loop does."""

    def __init__(self, **kwargs: Any) -> None:
        """Start without recorded steps."""
        super().__init__(**kwargs)
        self._chunk_ms: list[float] = []
        self._decode_ms: list[float] = []

    def update_batch(self) -> None:
        """Update the batch, then record the step's duration; only the loop thread writes."""
        io = self.inputs_and_outputs
        tokens = int(io.total_seqlen_q)
        is_decode = all(future.query_length == 1 for future in io.requests_in_batch)
        super().update_batch()
        took_ms = (self.clock.now_ns() - self._step_began_ns) / NS_PER_MS
        if is_decode:
            self._decode_ms.append(took_ms)
        elif tokens >= self.cache.max_batch_tokens:
            self._chunk_ms.append(took_ms)

    def drain(self) -> StepSamples:
        """Return the step times since the last call. Call it between slices, while no step runs."""
        times = StepSamples(tuple(self._chunk_ms), tuple(self._decode_ms))
        self._chunk_ms, self._decode_ms = [], []
        return times


# Full prefill chunks timed before the targets are chosen. Times of warm-up prompts are discarded.
_CHUNKS: Final = 52
_WARM_UP_PROMPTS: Final = 3
_CALIBRATION_OUTPUTS: Final = 8
_GROUP_SIZE: Final = 4
# Trajectories are short, so that a token costs about the same at every position. Otherwise a scheme
# whose rollouts get further would look slower.
_TURN_TOKENS_MAX: Final = 24
_CONTEXT_TOKENS_MAX: Final = 128
# Trajectories per concurrent turn (seat): while most trajectories wait for tools, the others keep
# the seats busy.
_IN_FLIGHT_PER_SEAT: Final = 4


class Alone:
    """Serving alone on the device, with timed steps.

    Lifecycle: constructor → `capacity_rps` → `calibrate` → slices → `owned` stops the engine.
    """

    def __init__(
        self, model: Model, settings: BenchSettings, clock: Clock, *, owned: ExitStack
    ) -> None:
        """Build and start the stock engine."""
        self.tenant = serving_tenant(model, settings, clock)
        self.engine = self.tenant.stock(TimedSteps)
        loop = self.engine.processor
        check(isinstance(loop, TimedSteps), "the loop of serving alone must be TimedSteps")
        self._steps: TimedSteps = loop
        self._settings = settings
        self._replay = Replay(clock, model.config.vocab_size)
        self._arm = ArmEngines("alone", self.engine, None, None)
        owned.callback(self.engine.stop)
        self.engine.start()

    def capacity_rps(self, trace: Trace) -> float:
        """Warm up, then measure serving's throughput at saturation."""
        self._longest(_WARM_UP_PROMPTS)
        self._replay.capacity_rps(trace, self._arm, seed=self._settings.seed)
        return self._replay.capacity_rps(trace, self._arm, seed=self._settings.seed)

    def calibrate(self, piece: Trace) -> Calibration:
        """Time steps of the largest shapes, and the requests of `piece`."""
        self._steps.drain()
        chunks = REQUEST_TOKENS // self.tenant.config.max_batch_tokens
        self._longest(ceil_div(_CHUNKS, chunks))
        steps = self._steps.drain()
        requests = self._replay.slice(
            piece, self._arm, number=-1, seed=self._settings.seed
        ).requests
        later_ms = [one.tpot_ms for one in requests if one.tpot_ms is not None]
        return Calibration(
            steps,
            float(np.percentile([one.ttft_ms for one in requests], 99)),
            float(np.percentile(later_ms or steps.decode_ms, 99)),
        )

    def watch(self) -> CountIn:
        """Start to time a slice; return the function that adds its step times to the slice."""
        self._steps.drain()

        def count_in(found: Slice) -> Slice:
            times = self._steps.drain()
            return replace(found, chunk_ms=times.chunk_ms, decode_ms=times.decode_ms)

        return count_in

    def _longest(self, count: int) -> None:
        """Serve `count` of the longest requests, one after the other."""
        for number in range(count):
            one = Trace(
                arrival_s=np.zeros(1),
                prompt_tokens=np.full(1, REQUEST_TOKENS),
                output_tokens=np.full(1, _CALIBRATION_OUTPUTS),
                name="longest",
            )
            self._replay.slice(one, self._arm, number=-1, seed=self._settings.seed + number)


class Bench:
    """Both models under every scheme, ready to run one slice of one arm at a time."""

    def __init__(
        self,
        rollout_model: Model,
        schemes: Sequence[Scheme],
        alone: Alone,
        slo: SLO,
        *,
        settings: BenchSettings,
        clock: Clock,
        owned: ExitStack,
    ) -> None:
        """Build the engines of all schemes; `owned` stops them, also after an error."""
        self._alone = alone
        self._slo = slo
        self._settings = settings
        self._clock = clock
        self._owned = owned
        self._tenants = alone.tenant, rollout_tenant(rollout_model, settings, clock)
        self._replay = Replay(clock, alone.tenant.model.config.vocab_size, slo.tpot_ms)
        self._governed: tuple[GovernedPair, RolloutLoad] | None = None
        self._rl_loop: RlLoopLoad | None = None
        self._loads: list[RolloutLoad] = []
        self.devices: dict[str, RoseDevice] = {}
        self._shared = self._stock_load()
        self.arms = {one.name: self._arm(one) for one in schemes}

    def _arm(self, scheme: Scheme) -> ArmEngines:
        if scheme.slowdown is not None:
            return self._rose(scheme)
        if scheme.name in GOVERNED:
            pair, load = self._governed = self._governed or self._governed_pair()
            governor = pair.governor(scheme.name)
            return ArmEngines(
                scheme.name, pair.serving, pair.lane, load, partial(pair.watch, governor)
            )
        if scheme.name == CONTROL:
            # An engine of its own, because an engine's speed depends on where its memory lies.
            again = Alone(self._tenants[0].model, self._settings, self._clock, owned=self._owned)
            return ArmEngines(scheme.name, again.engine, None, None, again.watch)
        serving = self._alone.engine
        if scheme.name == SHARE_ALL:
            return ArmEngines(scheme.name, serving, None, self._shared)
        if scheme.name == "priority":
            return ArmEngines(scheme.name, serving, None, self._stock_load(LeastOfAll))
        return ArmEngines(scheme.name, serving, None, None, self._alone.watch)

    def _stock_load(self, *processor: type[DeviceProcessor]) -> RolloutLoad:
        """Build rollouts on an engine with its own memory."""
        tenant = self._tenants[1]
        if self._settings.rl_loop is not None:
            # The borrower's weights change during the run, so this engine gets a copy.
            config = replace(tenant.config, sampling=False)
            tenant = replace(tenant, model=copy.deepcopy(tenant.model), config=config)
        engine = tenant.stock(*processor)
        self._owned.callback(engine.stop)
        return self._load(engine, WorkerKind.DEDICATED)

    def _governed_pair(self) -> tuple[GovernedPair, RolloutLoad]:
        pair = GovernedPair(
            self._tenants, self._slo, self._settings, self._clock, owned=self._owned
        )
        pair.serving.start()
        load = self._load(pair.rollouts, WorkerKind.DEDICATED)
        self._owned.callback(pair.lane.shut_down)
        return pair, load

    def _rose(self, scheme: Scheme) -> ArmEngines:
        """Build rose's engines.

        Only rose's borrower gives turns back. To the scheduler, the borrowers of all other schemes
        are dedicated workers.
        """
        one = self.devices[scheme.name] = RoseDevice(
            scheme, self._tenants, self._slo, self._settings, self._clock, owned=self._owned
        )
        load: RolloutLoad
        if self._settings.rl_loop is None:
            load = self._load(one.rollouts, WorkerKind.BORROWED)
        else:
            load = self._rl_loop = RlLoopLoad(
                one.rollouts,
                LiveWeights(self._tenants[1].model),
                self._settings.rl_loop,
                wait_s=ToolWaits(self._settings.seed),
                clock=self._clock,
            )
            self._own(load)
        return ArmEngines(scheme.name, one.serving, one.lane, load, one.watch)

    def _load(self, engine: Engine, kind: WorkerKind) -> RolloutLoad:
        settings = self._settings
        if not settings.has_turns:
            vocabulary = self._tenants[1].model.config.vocab_size
            return self._own(RolloutFeeder(engine, vocabulary=vocabulary, seed=settings.seed))
        return self._own(
            TurnFeeder(
                engine,
                kind,
                rollouts=RolloutLimits(
                    in_flight=_IN_FLIGHT_PER_SEAT * ROLLOUTS,
                    group_size=_GROUP_SIZE,
                    turn_tokens_max=_TURN_TOKENS_MAX,
                    context_tokens_max=_CONTEXT_TOKENS_MAX,
                ),
                wait_s=ToolWaits(settings.seed),
                seats=ROLLOUTS,
                seed=settings.seed,
                clock=self._clock,
            )
        )

    def _own(self, load: RolloutLoad) -> RolloutLoad:
        self._loads.append(load)
        self._owned.callback(load.stop)
        return load

    def warm_up(self, on_progress: Callable[[int, int], None]) -> None:
        """Start serving under rose, and collect the evidence for certificates."""
        for device in self.devices.values():
            device.warm_up(on_progress)

    def start(self) -> None:
        """Start the loads, whose rollouts stay paused, and the brokers."""
        for load in self._loads:
            load.start()
        for device in self.devices.values():
            if device.broker is not None:
                device.broker.start()

    def solo(self, name: str, duration_s: float) -> Slice:
        """Run an arm's rollouts alone on the device; an unknown arm runs those of `share_all`."""
        stock = ArmEngines(SHARE_ALL, self._alone.engine, None, self._shared)
        return self._replay.solo(self.arms.get(name, stock), duration_s)

    def run(self, trace: Trace, name: str, *, number: int) -> Slice:
        """Replay `trace` under the scheme `name`.

        Raises:
            Unavailable: an engine died or a request did not finish.
        """
        seed = hash((self._settings.seed, number, list(self.arms).index(name))) & 0xFFFFFFFF
        return self._replay.slice(trace, self.arms[name], number=number, seed=seed)

    def rl_loop(self) -> RlLoopRecord | None:
        """Stop the RL loop and return its record; None without an RL loop."""
        if self._rl_loop is None:
            return None
        self._rl_loop.stop()
        return self._rl_loop.record()
