"""The arms that a scenario compares: rose, and what else could be done with the same GPUs.

Each is what is known of a system, on the same cluster: who decides where turns run, how serving
lends, how weights travel, and what an engine takes to start. Where a publication leaves something
open, the arm gets the better of it. An arm that lends as rose does may be named with the slowdown
at which it lends: `rose@0.05`, `rose@inf`; without one it is 0, as `rose.slo.SLO` has it.
"""

from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Final

from rose.errors import InvalidArgument
from rose.scheduler.settings import PlacementPolicy
from rose.sim.cluster.lending_kv import KvRule, PublishedKv, ReservedKv, RoseKv
from rose.sim.scenario.updates import UpdateScheme
from rose.units import MS_PER_S

# Above this the times of the larger model hold.
LARGE_PARAMETERS: Final = 16e9


@dataclass(frozen=True, slots=True)
class Loan:
    """What serving gives away of a GPU.

    Args:
        scheme: of its compute, one of `rose.sim.SCHEMES`.
        kv: whose rule its KV pool follows.
        slowdown: of scheme "rose".
    """

    scheme: str
    kv: KvRule
    slowdown: float = 0.0


CERTIFIED: Final = Loan("rose", RoseKv())
"""What each quantum's certificate admits; memory beside a small reserve."""
PUBLISHED: Final = Loan("rose_paper", PublishedKv(60_000.0))
"""A step while both budgets hold; memory is halved under pressure, until the next step of RL."""
RESERVED: Final = Loan("static_split", ReservedKv(0.25))
"""A quarter of each GPU, always."""
# Serving's contexts find no room then, which the machine does not model: the most there is.
EVERYTHING: Final = Loan("share_all", ReservedKv(1.0))
"""Both engines run as they like."""
WHOLE_GPUS: Final = Loan("alone", ReservedKv(0.0))
"""As many whole GPUs as serving can do without."""


@dataclass(frozen=True, slots=True)
class ArmRules:
    """What an arm does.

    Args:
        policy: that places turns.
        loan: of serving; None where all of its GPUs serve only.
        updates: how weights travel.
        start_up_s: of an engine on a GPU that was lent anew: below 16 B parameters, and above.
        first_start_s: of the first start on a GPU, likewise; None where it is as any other.
        release_s: before serving needs a GPU, it must have been let go: likewise.
        seats_per_gpu: turns that an engine runs at once at most, for each of its GPUs.
    """

    policy: PlacementPolicy
    loan: Loan | None
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


ROSE: Final = "rose"
TRAINING_GPUS: Final = "training-gpus"
_JOINT: Final = PlacementPolicy.JOINT
_STICKY: Final = PlacementPolicy.LEAST_LOADED_STICKY

RULES: Final[dict[str, ArmRules]] = {
    # Five seconds from dormant to running is what the paper says of 32B; the copy alone takes less.
    ROSE: ArmRules(_JOINT, CERTIFIED, UpdateScheme.DELTA),
    # ROLL, AReaL: nothing is borrowed, and the collective update stops every engine.
    "resource-fixed": ArmRules(_STICKY, None, UpdateScheme.DENSE),
    # What rose's placement is worth: all else is rose's.
    "least-loaded-sticky": ArmRules(_STICKY, CERTIFIED, UpdateScheme.DELTA),
    # RLBoost with PEARL's measurements: 56.3 + 11.1 s and 67.1 + 17.9 s until an engine on a GPU
    # that never had one runs, 6.3 and 6.1 s where its process stayed, 3.2 and 4.4 s to let one
    # go; each pulls all weights.
    "elastic": ArmRules(
        _STICKY,
        WHOLE_GPUS,
        UpdateScheme.DENSE,
        start_up_s=(6.3, 6.1),
        first_start_s=(67.4, 85.0),
        release_s=(3.2, 4.4),
    ),
    # A share for training work that serving never sees again, as ElasticTrainer reserves it.
    "reserved-share": ArmRules(_STICKY, RESERVED, UpdateScheme.DENSE),
    # The paper: 16 trajectories on a GPU, sparse updates as COO.
    "rose-published": ArmRules(
        PlacementPolicy.ROSE_PUBLISHED, PUBLISHED, UpdateScheme.COO, seats_per_gpu=16
    ),
    # Libra's order of turns, as far as it is known, over rose's lending and updates.
    "mlfq": ArmRules(PlacementPolicy.MLFQ, CERTIFIED, UpdateScheme.DELTA),
    # PEARL: engines on the trainer's GPUs while it waits; a resident process takes 6.3 s to run
    # again, and 3.2 or 4.4 s to let go.
    TRAINING_GPUS: ArmRules(
        _STICKY,
        None,
        UpdateScheme.DENSE,
        start_up_s=(6.3, 6.1),
        release_s=(3.2, 4.4),
    ),
    "share-all": ArmRules(_STICKY, EVERYTHING, UpdateScheme.DELTA),
}


def rules_of(arm: str) -> ArmRules:
    """Return the rules of an arm by its name, with its slowdown if it has one.

    Raises:
        InvalidArgument: there is no such arm, or it cannot lend at that slowdown.
    """
    name, at, text = arm.partition("@")
    rules = RULES.get(name)
    if rules is None:
        close = "".join(f" (did you mean {one}?)" for one in get_close_matches(name, RULES, n=1))
        raise InvalidArgument(f"{arm!r} is unknown{close}; give one of {', '.join(RULES)}")
    if not at:
        return rules
    slowdown = _number(text)
    if rules.loan is not CERTIFIED or not slowdown >= 0:
        lending = ", ".join(name for name, one in RULES.items() if one.loan is CERTIFIED)
        raise InvalidArgument(
            f"{arm!r} has no slowdown; give a number of at least 0, or inf, to one of {lending}"
        )
    return replace(rules, loan=replace(CERTIFIED, slowdown=slowdown))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")
