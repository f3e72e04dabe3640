"""Settings of the RL loop and its parts."""

from dataclasses import dataclass
from pathlib import Path

from rose.scheduler import SchedulerSettings


@dataclass(frozen=True, slots=True)
class RolloutLimits:
    """Number and size limits of trajectories.

    Args:
        in_flight: concurrent trajectories, > 0.
        group_size: trajectories that share a task, > 0.
        turn_tokens_max: token limit of a turn, > 0.
        context_tokens_max: token limit of a trajectory, at most `TRAJECTORY_TOKENS_MAX`, since the
            trainer refuses longer trajectories.
    """

    in_flight: int
    group_size: int
    turn_tokens_max: int
    context_tokens_max: int


@dataclass(frozen=True, slots=True)
class TrainerSettings:
    """Settings of the trainer.

    Args:
        lr: constant learning rate of AdamW, > 0.
        batch: minimum trajectories per step, >= 1; groups are never split.
        learned_max: a step adds whole groups until it has this many trajectories, and counts the
            rest as passed over. With 0 a step learns from all; it may then be slower than the
            rollouts that generate them.
        is_bf16: multiply in bf16 instead of fp32, forward and backward. Faster on processors with
            bf16, but probability ratios then differ from 1 by about 1 % even if the weights have
            not changed.
        max_staleness: maximum age in versions, >= 0; older trajectories are dropped and counted.
        publish_every_s: minimum time between versions.
        checkpoint_every: versions between two checkpoints, >= 1.
    """

    lr: float = 1e-6
    batch: int = 8
    learned_max: int = 0
    is_bf16: bool = False
    max_staleness: int = 8
    publish_every_s: float = 3.0
    checkpoint_every: int = 10


@dataclass(frozen=True, slots=True)
class TrainerOptions:
    """Options of the trainer's program, passed as JSON in its only argument.

    Args:
        model: a preset, or a directory with config.json and weights.
        seed: seed of a preset's weights.
        run: name of the training run.
        checkpoint: file to resume from and save to.
        group_size: trajectories per task.
        first_version: lowest version number to use.
        weights_address: listening address for receivers of weights.
    """

    model: str
    seed: int
    run: str
    checkpoint: str
    group_size: int
    settings: TrainerSettings
    first_version: int = 0
    weights_address: str = "127.0.0.1:0"


@dataclass(frozen=True, slots=True)
class RlLoopSettings:
    """Settings of the RL loop.

    Args:
        model: the policy, a preset or a folder; every program loads it separately.
        seed: seed of the policy's weights, the tasks and the sampling.
        folder: folder that no other loop uses; holds the trainer's checkpoint.
        is_background: whether all programs run under SCHED_IDLE.
        scheduler: must admit more trajectories than one batch and two groups have together, since
            the trainer may wait for that many.
        seats: maximum concurrent turns on the dedicated worker.
        kv_tokens: KV cache of the dedicated worker, in tokens.
    """

    model: str
    seed: int
    folder: Path
    is_background: bool
    rollouts: RolloutLimits
    scheduler: SchedulerSettings
    trainer: TrainerSettings
    seats: int
    kv_tokens: int
