"""Real engines for every scheme on one device, each idle until its turn comes."""

from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from rose.cli.compare_lane import GovernedLane
from rose.cli.compare_loops import GovernedRollouts, GovernedServing, LeastOfAll
from rose.cli.compare_schemes import ABLATED, ALONE, CONTROL, Kind, Scheme
from rose.cli.compare_shares import GovernedShare, RoseShare, Share, StockShare
from rose.clock import Clock
from rose.demo.bench import BenchSettings, engine_configs
from rose.demo.replay import Arm
from rose.engines.torch import gate_layers
from rose.engines.transformers import (
    Engine,
    Model,
    kv_geometry,
    rollout_engine,
    serving_engine,
    stock_engine,
)
from rose.engines.transformers.processor import DeviceProcessor
from rose.errors import DeadlineExceeded, check
from rose.executor import CoServing
from rose.memory import choose_slab_bytes
from rose.rl.loop import LoopSettings
from rose.rl.turn_feeder import TurnFeeder
from rose.scheduler.worker import WorkerKind
from rose.sim.governor import Governor
from rose.sim.governors import HostWindow, RosePaper, Valve
from rose.slo import SLO
from rose.slo.latency_file import new_latency_model

_MODES: Final = {"rose_idle": "idle", "rose_slack": "slack"}
_GOVERNED: Final = ("host_window", "rose_paper", "valve")
_GROUP_SIZE: Final = 4
# Four times what a start-up takes on two slow cores.
_EVIDENCE_MS: Final = 60_000.0
# Trajectories for each seat: while most wait for tools, enough want to speak.
_IN_FLIGHT_PER_SEAT: Final = 4

POSSIBLE: Final = frozenset((ALONE, CONTROL, "share_all", "priority", *_GOVERNED, *_MODES))


class CompareBench:
    """Two models, and engines of both for every scheme. Close it with its `ExitStack`."""

    def __init__(
        self,
        serving_model: Model,
        rollout_model: Model,
        settings: BenchSettings,
        slo: SLO,
        clock: Clock,
        *,
        owned: ExitStack,
        logs: Path,
    ) -> None:
        """Build the engines that every comparison needs; `build` adds those of a scheme.

        Args:
            serving_model: answers the trace.
            rollout_model: generates.
            settings: of both; those of memory hold for each scheme.
            slo: serving's targets.
            clock: where time comes from.
            owned: ends what is made here, in the right order.
            logs: folder for certificates.
        """
        self._models = serving_model, rollout_model
        self._settings = settings
        self._slo = slo
        self._clock = clock
        self._owned = owned
        self._logs = logs
        plain, borrower = engine_configs(settings, clock)
        self._configs = plain, replace(borrower, sampling=True)
        self._geometries = tuple(
            kv_geometry(model, config)
            for model, config in zip(self._models, self._configs, strict=True)
        )
        self._serving = self._started(self._stock(0))
        self.rollouts = self._feeder(self._stock(1))
        self._governed: tuple[GovernedLane, Engine, TurnFeeder] | None = None
        self.logs: dict[str, Path] = {}

    def alone(self) -> Arm:
        """Serving by itself."""
        return Arm(ALONE, self._serving, None, None)

    def build(self, scheme: Scheme) -> Share:
        """Build what `scheme` needs, ready to serve a window."""
        if scheme.kind in {Kind.ROSE, Kind.ABLATION}:
            return self._rose(scheme)
        if scheme.name in _GOVERNED:
            return self._by_rule(scheme)
        load = None
        if scheme.name == "share_all":
            load = self.rollouts
        elif scheme.name == "priority":
            load = self._feeder(self._stock(1, LeastOfAll))
        return StockShare(Arm(scheme.name, self._serving, None, load))

    def _by_rule(self, scheme: Scheme) -> GovernedShare:
        if self._governed is None:
            self._governed = self._governed_engines()
        lane, engine, load = self._governed
        governor: Governor
        if scheme.name == "host_window":
            governor = HostWindow()
        elif scheme.name == "valve":
            governor = Valve()
        else:
            governor = RosePaper(self._slo, lane.profile_ms)
        return GovernedShare(Arm(scheme.name, engine, lane, load), lane, governor)

    def _governed_engines(self) -> tuple[GovernedLane, Engine, TurnFeeder]:
        """Build one pair of engines for all rules: between windows they take turns."""
        lane = GovernedLane(
            clock=self._clock,
            model=new_latency_model(
                self._settings.policy, step_tokens=self._configs[0].max_batch_tokens
            ),
            batch_tokens=self._configs[0].max_batch_tokens,
        )
        serving = self._stock(0, lambda **kwargs: GovernedServing(lane, **kwargs))
        rollouts = self._stock(1, lambda **kwargs: GovernedRollouts(lane, **kwargs))
        loop = rollouts.processor
        check(isinstance(loop, GovernedRollouts), "the borrower has a loop of another kind")
        loop.on_refused = rollouts.wake
        take_out = gate_layers(lane, self._models[1], every=self._settings.layers_per_segment)
        rollouts.on_stop(take_out)
        self._started(serving)
        load = self._feeder(rollouts)
        self._owned.callback(lane.shut_down)
        return lane, serving, load

    def _rose(self, scheme: Scheme) -> RoseShare:
        """Open a device of its own: how it lends is settled when it is opened."""
        settings = self._settings
        log = self._logs / f"{scheme.name}.log"
        policy = replace(
            settings.policy,
            mode=_MODES[ABLATED if scheme.ablates else scheme.name],
            without=scheme.ablates,
        )
        device = self._owned.enter_context(
            CoServing.open(
                settings.device,
                pool_bytes=settings.pool_bytes,
                slab_bytes=choose_slab_bytes(*self._geometries),
                log_path=log,
                policy=policy,
            )
        )
        lane = device.serving(
            self._geometries[0],
            slo=self._slo,
            reserve_bytes=settings.reserve_bytes,
            step_tokens=self._configs[0].max_batch_tokens,
            request_tokens=settings.request_tokens,
        )
        serving = self._started(serving_engine(self._models[0], lane, self._configs[0]))
        if serving.prober is not None:
            with suppress(DeadlineExceeded):  # Its probes go on in the background.
                serving.prober.warm_up(timeout_ms=_EVIDENCE_MS)
            serving.prober.stop()  # Until a window of this scheme begins.
        load = self._feeder(
            rollout_engine(
                self._models[1],
                device.rollout(self._geometries[1], limit_bytes=settings.pool_bytes),
                self._configs[1],
                layers_per_segment=settings.layers_per_segment,
            ),
            WorkerKind.BORROWED,
        )
        self.logs[scheme.name] = log
        return RoseShare(Arm(scheme.name, serving, lane, load), device, lane)

    def _stock(
        self, of: int, processor: Callable[..., DeviceProcessor] = DeviceProcessor
    ) -> Engine:
        blocks = self._settings.pool_bytes // self._geometries[of].block_bytes
        return stock_engine(
            self._models[of], self._configs[of], cache_blocks=blocks, processor=processor
        )

    def _started(self, engine: Engine) -> Engine:
        self._owned.callback(engine.stop)
        engine.start()
        return engine

    def _feeder(self, engine: Engine, kind: WorkerKind = WorkerKind.DEDICATED) -> TurnFeeder:
        """Give a borrower's engine turns, the same under every scheme; it is started, and paused.

        Only rose's borrower gives turns back while serving takes memory: others are the
        scheduler's as if nobody shared with them.
        """
        settings = self._settings
        load = TurnFeeder(
            engine,
            kind,
            loop=LoopSettings(
                in_flight=_IN_FLIGHT_PER_SEAT * settings.rollouts,
                group_size=_GROUP_SIZE,
                turn_tokens_max=settings.rollout_output_tokens,
                context_tokens_max=settings.rollout_prompt_tokens + settings.rollout_output_tokens,
                temperature=1.0,
            ),
            wait_s=settings.tool_wait_s,
            seats=settings.rollouts,
            seed=settings.seed,
            clock=self._clock,
        )
        self._owned.callback(engine.stop)
        self._owned.callback(load.stop)
        load.start()
        return load
