"""What an experiment's engines and the demo's circle are built with, and the device's cores."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rose.clock import Clock
from rose.demo.environments import Tokenizer
from rose.demo.rl.settings import CircleSettings, LoopSettings, TrainerSettings
from rose.engines.torch import run_on_cores
from rose.engines.transformers import Engine, EngineConfig, Model, kv_geometry, stock_engine
from rose.engines.transformers.processor import DeviceProcessor
from rose.errors import InvalidArgument
from rose.memory import KVGeometry
from rose.scheduler import SchedulerSettings
from rose.slo import Policy
from rose.units import MIB

ROLLOUTS: Final = 8  # generations in flight
POOL_BYTES: Final = 64 * MIB  # KV memory: of both engines under rose, of each of them otherwise
RESERVE_BYTES: Final = 8 * MIB  # what serving always has under rose
LAYERS_PER_SEGMENT: Final = 0.5  # decoder layers of a rollout between two gates
# Longest prompt and output of serving; they must fit into the pool beside others.
REQUEST_TOKENS: Final = 1024
OUTPUT_TOKENS: Final = 256


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """What the engines of all arms are built with; sizes in bytes and tokens.

    Args:
        device: "cpu", "cuda" or "cuda:<n>".
        cores: the cores that are the device; empty on a GPU.
        policy: the knobs of rose, but for what an arm says.
        log_path: name of an arm to the file of its certificates.
        seed: of prompts.
        tool_wait_s: `(trajectory, turn)` to how long its tool takes.
        circle: of what the arm `rose` rolls out; None for what the other arms do.
        has_turns: rollouts of all arms are turns of trajectories that use tools, not generations of
            a fixed length.
        has_broker: whether a broker decides how much the device lends.
        rollout_prompt_tokens: length of each rollout.
        rollout_output_tokens: length of each rollout.
    """

    device: str
    cores: frozenset[int]
    policy: Policy
    log_path: Callable[[str], Path]
    seed: int
    tool_wait_s: Callable[[int, int], float]
    circle: CircleSettings | None = None
    has_turns: bool = False
    has_broker: bool = False
    rollout_prompt_tokens: int = 64
    rollout_output_tokens: int = 128

    def described(self) -> dict[str, object]:
        """Return what shapes the numbers of every arm, for the report."""
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
    """One of the two models, and how its engines are built in every arm."""

    model: Model
    config: EngineConfig
    kv: KVGeometry

    def stock(
        self, pool_bytes: int, processor: Callable[..., DeviceProcessor] = DeviceProcessor
    ) -> Engine:
        """Build an engine with KV memory of its own."""
        blocks = pool_bytes // self.kv.block_bytes
        return stock_engine(self.model, self.config, cache_blocks=blocks, processor=processor)


def serving_tenant(model: Model, settings: BenchSettings, clock: Clock) -> Tenant:
    """Say how serving is built."""
    config = EngineConfig(cores=settings.cores or None, clock=clock)
    return Tenant(model, config, kv_geometry(model, config))


def rollout_tenant(model: Model, settings: BenchSettings, clock: Clock) -> Tenant:
    """Say how the borrower is built; small prefill chunks keep segments alike."""
    config = EngineConfig(
        cores=settings.cores or None,
        clock=clock,
        prefix_cache=True,
        # A segment of the circle's smaller policy is as long with twice the tokens.
        max_batch_tokens=32 if settings.circle is None else 64,
        spare_share=0.1,
        sampling=settings.has_turns or settings.circle is not None,
    )
    return Tenant(model, config, kv_geometry(model, config))


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


IN_FLIGHT: Final = 32
# In RL of a trained model few weights change in a step; a higher rate would change more.
LR: Final = 1e-6
_GROUP_SIZE: Final = 4
_BATCH: Final = 16
# What half a core learns from while the workers finish a batch; the rest is passed over.
_LEARNED_MAX: Final = 8
_MAX_STALENESS: Final = 4
_TURN_TOKENS_MAX: Final = 24
_CONTEXT_TOKENS_MAX: Final = 512
_PUBLISH_EVERY_S: Final = 4.0
_CHECKPOINT_EVERY: Final = 5


def circle_settings(
    *,
    model: str,
    seed: int,
    folder: Path,
    seats: int,
) -> CircleSettings:
    """Return the circle of the demo.

    Args:
        model: the policy.
        seed: of weights, tasks and sampling.
        folder: for the trainer's checkpoint.
        seats: turns at once on the dedicated worker.
    """
    return CircleSettings(
        model=model,
        seed=seed,
        folder=folder,
        is_background=True,
        loop=LoopSettings(
            in_flight=IN_FLIGHT,
            group_size=_GROUP_SIZE,
            turn_tokens_max=_TURN_TOKENS_MAX,
            context_tokens_max=_CONTEXT_TOKENS_MAX,
        ),
        scheduler=SchedulerSettings(
            max_staleness=_MAX_STALENESS, batch_trajectories=_BATCH, worker_lag_max=2
        ),
        trainer=TrainerSettings(
            lr=LR,
            batch=_BATCH,
            learned_max=_LEARNED_MAX,
            # After a restart numbers jump by what was reserved, so what is under way looks older.
            max_staleness=2 * _MAX_STALENESS + _CHECKPOINT_EVERY,
            checkpoint_every=_CHECKPOINT_EVERY,
            publish_every_s=_PUBLISH_EVERY_S,
        ),
        seats=seats,
        kv_tokens=seats * 2 * _CONTEXT_TOKENS_MAX,
    )


def check_policy(name: str, model: Model) -> None:
    """Refuse a policy that cannot say what environments hear."""
    if model.config.vocab_size < Tokenizer.vocabulary:
        raise InvalidArgument(
            f"--rollout-model {name} has a vocabulary of {model.config.vocab_size}: the "
            f"environments need {Tokenizer.vocabulary}; choose another, or give --synthetic"
        )
