"""The arms that a scenario compares: rose, and other uses of the same GPUs.

Each arm models a known system on the same cluster. Arms differ in the placement of turns, the loans
of serving, the transport of weights, and the start-up of engines. If a publication is unclear, the
reading that favours the arm is used. An arm that lends like rose may be named with its slowdown, as
in `rose@0.05` or `rose@inf`; the default is 0, as in `rose.slo.SLO`.
"""

from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Final

from rose.errors import InvalidArgument
from rose.scheduler.settings import PlacementPolicy
from rose.units import MS_PER_S
from rose_lab.sim.cluster.lending_kv import KvRule, PublishedKv, ReservedKv, RoseKv
from rose_lab.sim.scenario.updates import UpdateScheme

# Models with more parameters use the times of the larger model.
LARGE_PARAMETERS: Final = 16e9


@dataclass(frozen=True, slots=True)
class Loan:
    """The loan of a serving GPU.

    Args:
        scheme: compute-sharing scheme, one of `rose_lab.sim.SCHEMES`.
        kv: rule for its KV pool.
        slowdown: `SLO.slowdown` of the scheme "rose"; other schemes ignore it.
    """

    scheme: str
    kv: KvRule
    slowdown: float = 0.0


CERTIFIED: Final = Loan("rose", RoseKv())
"""Every quantum of compute is certified; all free memory but a small reserve is lent."""
PUBLISHED: Final = Loan("rose_paper", PublishedKv(60_000.0))
"""A rollout step runs while both latency budgets have slack. Lent memory is halved under pressure,
and grows back with the next RL step."""
RESERVED: Final = Loan("static_split", ReservedKv(0.25))
"""A quarter of each GPU, always."""
# The upper extreme. Serving's contexts would have no room, but the simulated machine ignores this.
EVERYTHING: Final = Loan("share_all", ReservedKv(1.0))
"""Both engines run freely."""
WHOLE_GPUS: Final = Loan("alone", ReservedKv(0.0))
"""All whole GPUs that serving does not need."""


@dataclass(frozen=True, slots=True)
class ArmRules:
    """Rules of an arm.

    Args:
        policy: placement policy.
        loan: loan of serving's GPUs; None if they only serve.
        updates: transport of weights.
        start_up_s: start-up time of an engine on a newly lent GPU: (for models of up to 16 B
            parameters, for larger models).
        first_start_s: start-up time of the first engine on a GPU, for the same two sizes; None if
            it equals `start_up_s`.
        release_s: lead time by which a GPU is released before serving needs it, for these sizes.
        seats_per_gpu: turns that an engine runs at once, per GPU.
    """

    policy: PlacementPolicy
    loan: Loan | None
    updates: UpdateScheme
    # The paper's time from dormant to running for a 32B model, more than the copy of its weights.
    start_up_s: tuple[float, float] = (5.0, 5.0)
    first_start_s: tuple[float, float] | None = None
    release_s: tuple[float, float] = (0.0, 0.0)
    seats_per_gpu: int = 64

    def start_up_ms(self, parameters: int) -> float:
        """Return the start-up time of an engine for a model."""
        return MS_PER_S * self.start_up_s[parameters > LARGE_PARAMETERS]

    def first_longer_ms(self, parameters: int) -> float:
        """Return the extra time of the first start on a GPU."""
        if self.first_start_s is None:
            return 0.0
        first_ms = MS_PER_S * self.first_start_s[parameters > LARGE_PARAMETERS]
        return first_ms - self.start_up_ms(parameters)

    def release_ms(self, parameters: int) -> float:
        """Return the release time of an engine for a model."""
        return MS_PER_S * self.release_s[parameters > LARGE_PARAMETERS]


ROSE: Final = "rose"
TRAINING_GPUS: Final = "training-gpus"
_JOINT: Final = PlacementPolicy.JOINT
_STICKY: Final = PlacementPolicy.LEAST_LOADED_STICKY

RULES: Final[dict[str, ArmRules]] = {
    ROSE: ArmRules(_JOINT, CERTIFIED, UpdateScheme.DELTA),
    # ROLL, AReaL: nothing is borrowed, and the collective update stops every engine.
    "resource-fixed": ArmRules(_STICKY, None, UpdateScheme.DENSE),
    # Shows the value of rose's placement: everything else is as in rose.
    "least-loaded-sticky": ArmRules(_STICKY, CERTIFIED, UpdateScheme.DELTA),
    # RLBoost with PEARL's measurements for the two sizes. An engine starts in 56.3 + 11.1 s or 67.1
    # + 17.9 s on a GPU that never had an engine, and in 6.3 or 6.1 s where its process stayed.
    # Release takes 3.2 or 4.4 s. Each engine pulls all weights.
    "elastic": ArmRules(
        _STICKY,
        WHOLE_GPUS,
        UpdateScheme.DENSE,
        start_up_s=(6.3, 6.1),
        first_start_s=(67.4, 85.0),
        release_s=(3.2, 4.4),
    ),
    # A share reserved for training work, permanently lost to serving, as in ElasticTrainer.
    "reserved-share": ArmRules(_STICKY, RESERVED, UpdateScheme.DENSE),
    # The paper: 16 trajectories per GPU, sparse updates as COO.
    "rose-published": ArmRules(
        PlacementPolicy.ROSE_PUBLISHED, PUBLISHED, UpdateScheme.COO, seats_per_gpu=16
    ),
    # Libra's order of turns, as far as known, with rose's lending and updates.
    "mlfq": ArmRules(PlacementPolicy.MLFQ, CERTIFIED, UpdateScheme.DELTA),
    # PEARL: engines on the trainer's GPUs while the trainer waits. A resident process resumes after
    # 6.3 or 6.1 s, and releases its GPUs in 3.2 or 4.4 s.
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
    """Return the rules of a named arm, with the slowdown in the name, if any.

    Raises:
        InvalidArgument: the arm is unknown, or cannot lend at that slowdown.
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
            f"{arm!r}: a slowdown must be a number >= 0 or inf, and only these arms take one: "
            f"{lending}"
        )
    return replace(rules, loan=replace(CERTIFIED, slowdown=slowdown))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")
