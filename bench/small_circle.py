"""A circle within one process: real engines, scheduler, transfer and trainer, no programs.

Without a program that dies or a link that is slow, what two runs differ in is whether a borrower
takes part.
"""

import itertools
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from rose.clock import BootClock
from rose.demo.environments import GridWorld, Task
from rose.demo.rl.intake import Intake
from rose.demo.rl.rollouts import RolloutThread
from rose.demo.rl.settings import RolloutSettings, TrainerSettings
from rose.demo.rl.trainer import PolicyTrainer
from rose.demo.rl.trajectory import Trajectory
from rose.engines.transformers import (
    EngineConfig,
    EngineWorker,
    LiveWeights,
    kv_geometry,
    load_model,
    rollout_engine,
    serving_engine,
    stock_engine,
)
from rose.errors import DeadlineExceeded, check
from rose.executor import SLO, CoServing, Policy
from rose.memory import choose_slab_bytes
from rose.node.feed import receive
from rose.scheduler import Capabilities, SchedulerSettings
from rose.scheduler.events import Consumed, VersionPublished
from rose.scheduler.worker import WorkerKind
from rose.transfer.publishing.log import VersionLog
from rose.transfer.publishing.row_publisher import RowPublisher

GROUP = 8
TASKS = 2
BATCH = 64
LR = 1e-3
STALENESS = 1
SEATS = 16
_TAKE_S = 120.0
_POOL_BYTES = 40 << 20
_TRAFFIC_S = 1.0


@dataclass(frozen=True, slots=True)
class Learned:
    """How a run went.

    Args:
        rewards: mean reward of each step's trajectories.
        trajectories: how many were learned from.
        borrowed_tokens: how many tokens the borrower gave.
        resumed: trajectories with a turn that moved.
        mismatched: commits whose digest differed.
        lost: trajectories that nobody can account for.
    """

    rewards: tuple[float, ...]
    trajectories: int
    borrowed_tokens: int
    resumed: int
    mismatched: int
    lost: int


def small_world() -> GridWorld:
    """Return a world that a small policy learns its way in within minutes."""
    return GridWorld(size=3, turns_max=6, wall_share=0.0, shaping=0.5)


class SmallCircle:
    """One run; everything is built, used and closed by `learn`."""

    def __init__(self, model: str, *, seed: int, has_borrower: bool) -> None:
        self._model = model
        self._seed = seed
        self._has_borrower = has_borrower
        self._clock = BootClock()
        self._intake = Intake(group_size=GROUP, vocabulary=128, waiting_max=1 << 16)
        self._trainer = PolicyTrainer(
            load_model(model, seed=seed), TrainerSettings(lr=LR, max_staleness=STALENESS + 1)
        )
        self._log = VersionLog()
        self._publisher = RowPublisher(self._trainer.bits(), f"seed-{seed}", 1, 0, self._log)
        self.loop = RolloutThread(
            RolloutSettings(
                in_flight=BATCH,
                group_size=GROUP,
                turn_tokens_max=2,
                context_tokens_max=640,
            ),
            scheduler=SchedulerSettings(
                max_staleness=STALENESS, batch_trajectories=BATCH, worker_lag_max=STALENESS
            ),
            seed=seed,
            wait_s=lambda _trajectory, _turn: 0.0,
            on_finished=self._finished,
            clock=self._clock,
            draw_task=self._draw_task,
        )

    def learn(self, versions: int) -> Learned:
        """Run until so many versions were published, and say how it went."""
        rewards: list[float] = []
        with ExitStack() as parts:
            parts.callback(self.loop.stop)  # Also when an engine cannot be built.
            self.loop.start()
            self._add_dedicated(parts)
            if self._has_borrower:
                self._add_borrower(parts)
            parts.callback(self.loop.stop)  # Before the engines: no worker is lost at the end.
            while len(rewards) < versions:
                rewards.append(self._learn_once())
        check(self.loop.error is None, "the rollouts have died")
        counts = self.loop.counts()
        return Learned(
            rewards=tuple(rewards),
            trajectories=versions * BATCH,
            borrowed_tokens=self.loop.history.tokens(WorkerKind.BORROWED),
            resumed=len(self.loop.history.resumed),
            mismatched=sum(not commit.is_match for commit in self.loop.history.commits),
            lost=counts.lost,
        )

    def _learn_once(self) -> float:
        batch: Sequence[Trajectory] = self._intake.take(BATCH, timeout_s=_TAKE_S)
        if not batch:
            raise DeadlineExceeded(
                f"no batch came within {_TAKE_S:g} s: {self.loop.error}, {self.loop.counts()}, "
                f"{self.loop.history.incidents}"
            )
        published = self._publisher.version.n
        stats = self._trainer.step(batch, published=published)
        self.loop.send(Consumed(len(batch)))
        self._publisher.publish(self._trainer.bits())
        self.loop.send(VersionPublished(published + 1))
        return stats.reward_mean

    def _finished(self, trajectory: Trajectory) -> None:
        self._intake.submit([trajectory], newest=self._publisher.version.n)

    def _draw_task(self, group: int) -> Task:
        return Task(group * GROUP, group, self._seed * TASKS + group % TASKS, small_world())

    def _join(self, worker: EngineWorker) -> None:
        can = Capabilities(
            seats=SEATS,
            prefill_tokens_per_s=20_000.0,
            decode_step_ms=4.0,
            decode_ms_per_sequence=0.1,
            domain=worker.number,
        )
        self.loop.join(worker, can)

    def _follow(self, worker: EngineWorker, weights: LiveWeights, parts: ExitStack) -> None:
        receiver = receive(self._log, weights, worker, version=0)
        parts.callback(receiver.close)

    def _add_dedicated(self, parts: ExitStack) -> None:
        model = load_model(self._model, seed=self._seed)
        weights = LiveWeights(model)
        config = EngineConfig(prefix_cache=True, sampling=True, max_requests_per_batch=SEATS)
        engine = stock_engine(model, config, cache_blocks=1024)
        worker = EngineWorker(engine, 1, WorkerKind.DEDICATED, self.loop.receive, flush_ms=20.0)
        self._join(worker)
        engine.start()
        parts.callback(engine.stop)
        self._follow(worker, weights, parts)

    def _add_borrower(self, parts: ExitStack) -> None:
        """Add a borrower beside an engine whose requests close its gate and take its slabs."""
        serving_model, model = (
            load_model("tiny-qwen2", seed=1),
            load_model(self._model, seed=self._seed),
        )
        weights = LiveWeights(model)
        plain = EngineConfig(max_batch_tokens=64)
        sampling = EngineConfig(
            prefix_cache=True, sampling=True, max_requests_per_batch=SEATS, max_batch_tokens=64
        )
        kv = kv_geometry(serving_model, plain), kv_geometry(model, sampling)
        device = parts.enter_context(
            CoServing.open(
                "cpu",
                pool_bytes=_POOL_BYTES,
                slab_bytes=choose_slab_bytes(*kv),
                policy=Policy(regrow_after_ms=5.0, revoke_ms=200.0, blocking_ms=2000.0),
            )
        )
        lane = device.serving(
            kv[0],
            slo=SLO(ttft_ms=20_000.0, tpot_ms=1000.0),
            reserve_bytes=4 << 20,
            step_tokens=64,
            request_tokens=256,
        )
        borrower_lane = device.rollout(kv[1], limit_bytes=_POOL_BYTES)
        serving = serving_engine(serving_model, lane, plain)
        borrower = rollout_engine(model, borrower_lane, sampling, layers_per_segment=1)
        worker = EngineWorker(borrower, 0, WorkerKind.BORROWED, self.loop.receive, flush_ms=20.0)
        self._join(worker)
        for engine in (serving, borrower):
            engine.start()
            parts.callback(engine.stop)
        self._follow(worker, weights, parts)
        worker.grant()
        is_over = threading.Event()

        def disturb() -> None:
            for number in itertools.count():
                if is_over.wait(_TRAFFIC_S):
                    return
                if number % 5 == 4:
                    worker.revoke()
                    worker.grant()
                for part in range(3):
                    request_id = f"{number}.{part}"
                    lane.arrived(request_id, prompt_tokens=200)
                    serving.submit(
                        request_id,
                        list(range(1, 201)),
                        max_new_tokens=8,
                        on_output=lambda output, name=request_id: (
                            lane.finished(name) if output.is_finished() else None
                        ),
                    )

        traffic = threading.Thread(target=disturb, name="traffic")
        traffic.start()
        parts.callback(traffic.join)
        parts.callback(is_over.set)
