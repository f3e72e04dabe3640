"""What a circle is made of."""

from dataclasses import dataclass
from pathlib import Path

from rose.demo.rl.loop import LoopSettings
from rose.demo.rl.supervisor import RestartPolicy
from rose.errors import InvalidArgument
from rose.scheduler import PlacementPolicy, SchedulerSettings


@dataclass(frozen=True, slots=True)
class TrainerPace:
    """How the trainer learns; the fields are options of `python -m rose.demo.rl.program`.

    Args:
        lr: of AdamW.
        batch: trajectories of a step, at least.
        learned_max: trajectories that a step learns from; 0 for all it has.
        is_bf16: multiply in bf16: faster where the processor can.
        max_staleness: in versions; older trajectories are dropped, and counted.
        publish_every_s: versions are at least so far apart.
        checkpoint_every: versions between two checkpoints.
    """

    lr: float = 1e-6
    batch: int = 16
    learned_max: int = 0
    is_bf16: bool = False
    max_staleness: int = 8
    publish_every_s: float = 3.0
    checkpoint_every: int = 10


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
