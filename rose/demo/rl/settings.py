"""What a circle and the trajectories of its loop are made of, and what became of them."""

import math
from dataclasses import dataclass
from pathlib import Path

from rose.demo.rl.supervisor import RestartPolicy
from rose.demo.rl.trajectory import TRAJECTORY_TOKENS_MAX
from rose.errors import InvalidArgument
from rose.scheduler import PlacementPolicy, SchedulerSettings


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """What trajectories are made of.

    Args:
        in_flight: trajectories that are started and not finished, > 0.
        group_size: trajectories that share a task, > 0.
        turn_tokens_max: a turn is cut there, > 0.
        context_tokens_max: a trajectory ends before its context grows beyond this.
        temperature: of sampling, >= 0.
    """

    in_flight: int
    group_size: int
    turn_tokens_max: int
    context_tokens_max: int
    temperature: float

    def __post_init__(self) -> None:
        """Check the counts."""
        for name in ("in_flight", "group_size", "turn_tokens_max", "context_tokens_max"):
            if getattr(self, name) < 1:
                raise InvalidArgument(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.context_tokens_max > TRAJECTORY_TOKENS_MAX:
            raise InvalidArgument(
                f"context_tokens_max is {self.context_tokens_max}: no trajectory of over "
                f"{TRAJECTORY_TOKENS_MAX} tokens is learned from"
            )
        if not 0 <= self.temperature < math.inf:
            raise InvalidArgument(f"temperature must be >= 0, not {self.temperature}")


@dataclass(frozen=True, slots=True)
class LoopCounts:
    """What became of the trajectories; `started = finished + dropped + in_flight + lost`.

    Args:
        started: trajectories that got a task.
        finished: trajectories that were handed on.
        dropped: trajectories that the scheduler gave up, and reported.
        in_flight: trajectories that are neither finished nor dropped.
        resumed: trajectories with a turn that one worker began and another, or a later lease,
            ended.
        lost: trajectories that no list accounts for: always 0.
    """

    started: int
    finished: int
    dropped: int
    in_flight: int
    resumed: int
    lost: int


@dataclass(frozen=True, slots=True)
class TrainerPace:
    """How the trainer learns; `python -m rose.demo.rl.program` has an option for each field.

    Args:
        lr: of AdamW.
        batch: trajectories of a step, at least; groups are never split.
        learned_max: trajectories that a step learns from; 0 for all it has.
        is_bf16: multiply in bf16: faster where the processor can.
        max_staleness: in versions; older trajectories are dropped, and counted.
        publish_every_s: versions are at least so far apart.
        checkpoint_every: versions between two checkpoints.
    """

    lr: float = 1e-6
    batch: int = 8
    learned_max: int = 0
    is_bf16: bool = False
    max_staleness: int = 8
    publish_every_s: float = 3.0
    checkpoint_every: int = 10

    def __post_init__(self) -> None:
        """Refuse a pace that nobody can keep."""
        if self.batch < 1 or self.checkpoint_every < 1 or not self.publish_every_s >= 0:
            raise InvalidArgument(
                f"batch {self.batch}, checkpoint_every {self.checkpoint_every}, publish_every_s "
                f"{self.publish_every_s}: give at least 1, 1 and 0"
            )


@dataclass(frozen=True, slots=True)
class DedicatedWorker:
    """The worker that serves nobody else; the fields are options of `python -m rose.node.worker`.

    Args:
        seats: most turns at once.
        kv_tokens: what its cache holds.
    """

    seats: int = 8
    kv_tokens: int = 16_384


@dataclass(frozen=True, slots=True)
class CircleSettings:
    """What a circle is made of.

    Args:
        model: the policy, a preset or a folder; every part of the circle loads it for itself.
        seed: of the policy's weights, the tasks and the sampling.
        folder: the trainer's checkpoint goes there.
        cores: of the trainer and the dedicated worker; empty for all there are.
        is_background: both programs run in time that nobody else wants.
        loop: of the trajectories.
        scheduler: of the scheduler.
        policy: who decides where a turn runs.
        pace: of the trainer.
        dedicated: the dedicated worker.
        restarts: how often a program is started again.
    """

    model: str
    seed: int
    folder: Path
    cores: frozenset[int]
    is_background: bool
    loop: LoopSettings
    scheduler: SchedulerSettings
    policy: PlacementPolicy
    pace: TrainerPace
    dedicated: DedicatedWorker
    restarts: RestartPolicy

    def __post_init__(self) -> None:
        """Refuse a trainer that waits for more than the scheduler lets start.

        Raises:
            InvalidArgument: what the settings have to say to each other.
        """
        admitted = (self.scheduler.max_staleness + 1) * self.scheduler.batch_trajectories
        # Groups are complete one by one: some are under way when the batch is.
        wanted = self.pace.batch + 2 * self.loop.group_size
        if min(admitted, self.loop.in_flight + self.pace.batch) < wanted:
            raise InvalidArgument(
                f"the trainer waits for {self.pace.batch} trajectories in groups of "
                f"{self.loop.group_size}, of {admitted} that may be unused and "
                f"{self.loop.in_flight} in flight: raise in_flight, or lower its batch"
            )
