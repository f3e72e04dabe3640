"""What a circle and the trajectories of its loop are made of."""

from dataclasses import dataclass
from pathlib import Path

from rose.scheduler import SchedulerSettings


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """What trajectories are made of.

    Args:
        in_flight: trajectories that are started and not finished, > 0.
        group_size: trajectories that share a task, > 0.
        turn_tokens_max: a turn is cut there, > 0.
        context_tokens_max: a trajectory ends before its context grows beyond this, at most
            `TRAJECTORY_TOKENS_MAX`: the trainer refuses longer ones.
    """

    in_flight: int
    group_size: int
    turn_tokens_max: int
    context_tokens_max: int


@dataclass(frozen=True, slots=True)
class TrainerSettings:
    """How the trainer learns.

    Args:
        lr: of AdamW, constant, > 0.
        batch: trajectories of a step, at least, >= 1; groups are never split.
        learned_max: a step learns from whole groups until it has so many trajectories; the others
            are passed over, and counted. 0 for all: rollouts may come faster than a trainer learns.
        is_bf16: multiply in bf16, not fp32, on the way forward and back: faster where the processor
            can, but a ratio then is 1 only to within about a percent.
        max_staleness: in versions, >= 0; older trajectories are dropped, and counted.
        publish_every_s: versions are at least so far apart.
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
    """What the trainer's program is told, as JSON in its only argument.

    Args:
        model: a preset, or a directory with config.json and weights.
        seed: of a preset's weights.
        run: names the training run.
        checkpoint: file to go on from and to save to.
        group_size: trajectories with the same task.
        first_version: lowest number of a version to use.
        weights_address: where receivers of weights ask.
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
class CircleSettings:
    """What a circle is made of.

    Args:
        model: the policy, a preset or a folder; every part of the circle loads it for itself.
        seed: of the policy's weights, the tasks and the sampling.
        folder: of this circle alone; the trainer's checkpoint goes there.
        is_background: all programs run in time that nobody else wants.
        loop: of the trajectories.
        scheduler: admits more trajectories than the trainer waits for: a batch and two groups.
        seats: most turns at once on the dedicated worker.
        kv_tokens: what its cache holds.
    """

    model: str
    seed: int
    folder: Path
    is_background: bool
    loop: LoopSettings
    scheduler: SchedulerSettings
    trainer: TrainerSettings
    seats: int
    kv_tokens: int
