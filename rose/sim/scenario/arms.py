"""The arms that a scenario compares: rose, and what else could be done with the same GPUs.

Each is what is known of a system, on the same cluster: who decides where turns run, how serving
lends, how weights travel, and what an engine takes to start. Where a publication leaves something
open, the arm gets the better of it.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from rose.scheduler.settings import PlacementPolicy
from rose.sim.scenario.updates import UpdateScheme
from rose.units import MS_PER_S

# Above this the times of the larger model hold.
LARGE_PARAMETERS: Final = 16e9


class Arm(Enum):
    """One way to run a scenario."""

    ROSE = "rose"
    FIXED = "resource-fixed"
    LEAST_LOADED = "least-loaded-sticky"
    ELASTIC = "elastic"
    RESERVED = "reserved-share"
    PUBLISHED = "rose-published"
    MLFQ = "mlfq"
    TRAINING_GPUS = "training-gpus"
    SHARE_ALL = "share-all"


class Loan(Enum):
    """What serving gives away of its GPUs."""

    NOTHING = "all of them serve only"
    CERTIFIED = "what each quantum's certificate admits; memory beside a small reserve"
    PUBLISHED = "a step while both budgets hold; memory is halved under pressure and then frozen"
    RESERVED = "a quarter of each GPU, always"
    EVERYTHING = "both engines run as they like"
    WHOLE_GPUS = "as many whole GPUs as serving can do without"


@dataclass(frozen=True, slots=True)
class ArmRules:
    """What an arm does.

    Args:
        policy: that places turns.
        loan: of serving.
        updates: how weights travel.
        start_up_s: of an engine on a GPU that was lent anew: below 16 B parameters, and above.
        first_start_s: of the first start on a GPU, likewise; None where it is as any other.
        release_s: before serving needs a GPU, it must have been let go: likewise.
        seats_per_gpu: turns that an engine runs at once at most, for each of its GPUs.
    """

    policy: PlacementPolicy
    loan: Loan
    updates: UpdateScheme
    start_up_s: tuple[float, float] = (5.0, 5.0)
    first_start_s: tuple[float, float] | None = None
    release_s: tuple[float, float] = (0.0, 0.0)
    seats_per_gpu: int = 64

    def start_up_ms(self, parameters: int) -> float:
        """Return what an engine of a model takes to start."""
        return MS_PER_S * self.start_up_s[parameters > LARGE_PARAMETERS]

    def first_longer_ms(self, parameters: int) -> float:
        """Return how much longer the first start on a GPU takes than each later one."""
        if self.first_start_s is None:
            return 0.0
        first_ms = MS_PER_S * self.first_start_s[parameters > LARGE_PARAMETERS]
        return first_ms - self.start_up_ms(parameters)

    def release_ms(self, parameters: int) -> float:
        """Return what an engine of a model takes to go."""
        return MS_PER_S * self.release_s[parameters > LARGE_PARAMETERS]


_JOINT: Final = PlacementPolicy.JOINT
_STICKY: Final = PlacementPolicy.LEAST_LOADED_STICKY

RULES: Final[dict[Arm, ArmRules]] = {
    # Five seconds from dormant to running is what the paper says of 32B; the copy alone takes less.
    Arm.ROSE: ArmRules(_JOINT, Loan.CERTIFIED, UpdateScheme.DELTA),
    # ROLL, AReaL: nothing is borrowed, and the collective update stops every engine.
    Arm.FIXED: ArmRules(_STICKY, Loan.NOTHING, UpdateScheme.DENSE),
    # What rose's placement is worth: all else is rose's.
    Arm.LEAST_LOADED: ArmRules(_STICKY, Loan.CERTIFIED, UpdateScheme.DELTA),
    # RLBoost with PEARL's measurements: 56.3 + 11.1 s and 67.1 + 17.9 s until an engine on a GPU
    # that never had one runs, 6.3 and 6.1 s where its process stayed, 3.2 and 4.4 s to let one
    # go; each pulls all weights.
    Arm.ELASTIC: ArmRules(
        _STICKY,
        Loan.WHOLE_GPUS,
        UpdateScheme.DENSE,
        start_up_s=(6.3, 6.1),
        first_start_s=(67.4, 85.0),
        release_s=(3.2, 4.4),
    ),
    # A share for training work that serving never sees again, as ElasticTrainer reserves it.
    Arm.RESERVED: ArmRules(_STICKY, Loan.RESERVED, UpdateScheme.DENSE),
    # The paper: 16 trajectories on a GPU, sparse updates as COO.
    Arm.PUBLISHED: ArmRules(
        PlacementPolicy.ROSE_PUBLISHED, Loan.PUBLISHED, UpdateScheme.COO, seats_per_gpu=16
    ),
    # Libra's order of turns, as far as it is known, over rose's lending and updates.
    Arm.MLFQ: ArmRules(PlacementPolicy.MLFQ, Loan.CERTIFIED, UpdateScheme.DELTA),
    # PEARL: engines on the trainer's GPUs while it waits; a resident process takes 6.3 s to run
    # again, and 3.2 or 4.4 s to let go.
    Arm.TRAINING_GPUS: ArmRules(
        _STICKY,
        Loan.NOTHING,
        UpdateScheme.DENSE,
        start_up_s=(6.3, 6.1),
        release_s=(3.2, 4.4),
    ),
    Arm.SHARE_ALL: ArmRules(_STICKY, Loan.EVERYTHING, UpdateScheme.DELTA),
}
