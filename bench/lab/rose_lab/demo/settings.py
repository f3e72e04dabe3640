"""Settings of an experiment's engines and of the demo's RL loop, and the device's cores."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rose.clock import Clock
from rose.engines.torch import run_on_cores
from rose.engines.transformers import Engine, EngineConfig, Model, kv_geometry, stock_engine
from rose.engines.transformers.processor import DeviceProcessor
from rose.errors import InvalidArgument
from rose.memory import KVGeometry
from rose.scheduler import SchedulerSettings
from rose.slo import Policy
from rose.units import MIB
from rose_lab.demo.environments import Tokenizer
from rose_lab.demo.rl.settings import RlLoopSettings, RolloutLimits, TrainerSettings

ROLLOUTS: Final = 8  # generations in flight
POOL_BYTES: Final = 64 * MIB  # KV memory, shared by both engines under rose, per engine otherwise
RESERVE_BYTES: Final = 8 * MIB  # serving's guaranteed minimum under rose
LAYERS_PER_SEGMENT: Final = 1  # rollout decoder layers between two gates
# Maximum tokens of a serving prompt (REQUEST_TOKENS) and of its output; the pool must hold several
# such requests.
REQUEST_TOKENS: Final = 1024
OUTPUT_TOKENS: Final = 256


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """Settings of the engines of all arms.

    Args:
        device: "cpu", "cuda" or "cuda:<n>".
        cores: the cores that act as the device; empty on a GPU.
        policy: rose's policy; an arm may override parts of it.
        log_path: maps an arm's name to its certificate log.
        seed: seed of prompts and tool waits.
        rl_loop: RL loop of the arm `rose`; if None, that arm runs the same rollouts as the others.
        has_turns: whether all rollouts are turns of trajectories with tools, not generations of
            fixed length.
        has_broker: whether a broker caps the device's lending.
    """

    device: str
    cores: frozenset[int]
    policy: Policy
    log_path: Callable[[str], Path]
    seed: int
    rl_loop: RlLoopSettings | None = None
    has_turns: bool = False
    has_broker: bool = False

    def described(self) -> dict[str, object]:
        """Return the settings that affect every arm, for the report."""
        return {
            "rollouts": ROLLOUTS,
            "pool_mib": POOL_BYTES // MIB,
            "reserve_mib": RESERVE_BYTES // MIB,
            "epsilon": self.policy.epsilon,
            "layers_per_segment": LAYERS_PER_SEGMENT,
            "device": self.device,
            "cores": sorted(self.cores),
        }


@dataclass(frozen=True, slots=True)
class Tenant:
    """One of the two models, with the settings of its engines in every arm."""

    model: Model
    config: EngineConfig
    kv: KVGeometry

    def stock(self, processor: Callable[..., DeviceProcessor] = DeviceProcessor) -> Engine:
        """Build an engine with its own KV memory."""
        blocks = POOL_BYTES // self.kv.block_bytes
        return stock_engine(self.model, self.config, cache_blocks=blocks, processor=processor)


def serving_tenant(model: Model, settings: BenchSettings, clock: Clock) -> Tenant:
    """Return serving's model with its engine settings."""
    config = EngineConfig(cores=settings.cores or None, clock=clock)
    return Tenant(model, config, kv_geometry(model, config))


def rollout_tenant(model: Model, settings: BenchSettings, clock: Clock) -> Tenant:
    """Return the borrower's model with its engine settings; small chunks keep segments short."""
    config = EngineConfig(
        cores=settings.cores or None,
        clock=clock,
        prefix_cache=True,
        # The RL loop's smaller policy needs twice the tokens for a segment of equal length.
        max_batch_tokens=32 if settings.rl_loop is None else 64,
        spare_share=0.1,
        sampling=settings.has_turns or settings.rl_loop is not None,
    )
    return Tenant(model, config, kv_geometry(model, config))


def choose_core() -> frozenset[int]:
    """Choose the device's core: the last one this process may use.

    Raises:
        InvalidArgument: no core is left for the load generator.
    """
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        raise InvalidArgument(
            "there is one usable core, but two are needed: one for the device and one for the load "
            "generator"
        )
    return frozenset(usable[-1:])


@contextmanager
def on_device_cores(settings: BenchSettings) -> Iterator[None]:
    """Keep this process off the device's cores; only engine threads run there."""
    if settings.cores:
        run_on_cores(len(settings.cores))
    usable = os.sched_getaffinity(0)
    os.sched_setaffinity(0, usable - settings.cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, usable)


IN_FLIGHT: Final = 32
# A step of RL on a trained model changes few weights; a higher rate would change more.
LR: Final = 1e-6
_GROUP_SIZE: Final = 4
_BATCH: Final = 16
_MAX_STALENESS: Final = 4
_CONTEXT_TOKENS_MAX: Final = 512
_CHECKPOINT_EVERY: Final = 5


def rl_loop_settings(*, model: str, seed: int, folder: Path) -> RlLoopSettings:
    """Return the demo's RL loop settings; `folder` gets the trainer's checkpoint."""
    return RlLoopSettings(
        model=model,
        seed=seed,
        folder=folder,
        is_background=True,
        rollouts=RolloutLimits(
            in_flight=IN_FLIGHT,
            group_size=_GROUP_SIZE,
            turn_tokens_max=24,
            context_tokens_max=_CONTEXT_TOKENS_MAX,
        ),
        scheduler=SchedulerSettings(
            max_staleness=_MAX_STALENESS, batch_trajectories=_BATCH, worker_lag_max=2
        ),
        trainer=TrainerSettings(
            lr=LR,
            batch=_BATCH,
            # Half a core can learn from 8 trajectories while the workers finish a batch.
            learned_max=8,
            # A restart skips the reserved version numbers, so trajectories in flight look older.
            max_staleness=2 * _MAX_STALENESS + _CHECKPOINT_EVERY,
            checkpoint_every=_CHECKPOINT_EVERY,
            publish_every_s=4.0,
        ),
        seats=ROLLOUTS,
        kv_tokens=ROLLOUTS * 2 * _CONTEXT_TOKENS_MAX,
    )


def check_policy(name: str, model: Model) -> None:
    """Raise `InvalidArgument` if the vocabulary is too small for the environments' tokens."""
    if model.config.vocab_size < Tokenizer.vocabulary:
        raise InvalidArgument(
            f"--rollout-model {name} has a vocabulary of {model.config.vocab_size}: the "
            f"environments need {Tokenizer.vocabulary}; choose another model, or use --synthetic"
        )
