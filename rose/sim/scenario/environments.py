"""What the trajectories of a job are made of: a table of environments, distributions, or a trace.

The table holds a few numbers for each environment, with where they come from; see `Published` for
what is known of the tasks of the paper, whose runs nobody has published turn by turn.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, TypeAlias

from rose.errors import InvalidArgument
from rose.sim.scenario.distributions import Distribution, Lognormal, Mixture, Pareto, Part
from rose.sim.scenario.fields import Range
from rose.sim.scenario.ranges import Share

_Turns: TypeAlias = Annotated[int, Range(1, 4096, "turns")]


@dataclass(frozen=True, slots=True)
class Drawn:
    """Trajectories whose parts are drawn, each from a distribution.

    A trajectory draws how hard it is; hard ones take more turns and say more in each. Its group has
    the same task, so part of how hard it is, it shares with them.

    Args:
        turns: of a trajectory; rounded, at least 1.
        first_heard: tokens of the task, before the first turn.
        heard: tokens that the environment says before each later turn.
        said: tokens that a turn generates.
        tool_s: seconds from the end of a turn to the next one's beginning.
        turns_max: what the environment allows.
        group_share: of how hard a trajectory is, what its group has in common: 0 makes the members
            of a group as different as any, 1 makes all of them equally hard.
        hardness: by which power of e a trajectory that is one standard deviation harder says more
            in each of its turns.
    """

    kind: ClassVar = "drawn"
    turns: Distribution
    first_heard: Distribution
    heard: Distribution
    said: Distribution
    tool_s: Distribution
    turns_max: _Turns = 4096
    group_share: Share = 0.5
    hardness: Annotated[float, Range(0, 2)] = 0.0


@dataclass(frozen=True, slots=True)
class Named:
    """One of `ENVIRONMENTS`.

    Args:
        name: of it.
    """

    kind: ClassVar = "named"
    name: str

    def __post_init__(self) -> None:
        """Refuse a name that is not in the table."""
        if self.name not in ENVIRONMENTS:
            raise InvalidArgument(
                f"name: no environment '{self.name}'; there are {', '.join(ENVIRONMENTS)}"
            )


@dataclass(frozen=True, slots=True)
class Replayed:
    """Sessions of a trace, each turn as it was; a group is one session again and again.

    Args:
        trace: its path, relative to the scenario's file.
        wait_s_max: longer waits are of people, not of tools, and are cut to this.
    """

    kind: ClassVar = "replayed"
    trace: str
    wait_s_max: Annotated[float, Range(0, 86_400, "s")] = 60.0


Environment: TypeAlias = Drawn | Named | Replayed

# What tools of coding agents take: 86 % of calls return within a second, 95 % within ten (issue 285
# of vllm-project/router). A lognormal through both: ln 10 / (z95 - z86) = 4.08, median e^(-4.4).
# The tail is cut at what a test run may take.
_TOOL_CALL: Final = Lognormal(median=0.0122, sigma=4.078, most=120.0)

# A step of a text game on a CPU pod: milliseconds, but a pod that is rescheduled takes seconds.
_GAME_STEP: Final = Mixture(
    (
        Part(0.98, Lognormal(median=0.05, sigma=0.5)),
        Part(0.02, Pareto(least=0.5, alpha=1.2, most=30.0)),
    )
)

ENVIRONMENTS: Final[dict[str, Drawn]] = {
    # The bounds are ROLL's (FrozenLakeEnv: 20 steps) and the paper's 32 Ki context; the shape is
    # chosen so that what is published of the paper's runs holds: prompts are 77-86 % of the tokens,
    # P75 of a step's trajectories ends within 30 % of its time, the tail is 5-10 times the median.
    "frozen-lake": Drawn(
        turns=Lognormal(median=3.4, sigma=0.85),
        first_heard=Lognormal(median=900.0, sigma=0.1),
        heard=Lognormal(median=760.0, sigma=0.35),
        said=Lognormal(median=150.0, sigma=0.6, most=2048.0),
        tool_s=_GAME_STEP,
        turns_max=20,
        group_share=0.5,
        hardness=0.25,
    ),
    # As above with the 30 steps of Trinity's ALFWorld; rooms are described at greater length.
    "alfworld": Drawn(
        turns=Lognormal(median=5.0, sigma=0.85),
        first_heard=Lognormal(median=1200.0, sigma=0.15),
        heard=Lognormal(median=620.0, sigma=0.4),
        said=Lognormal(median=110.0, sigma=0.6, most=2048.0),
        tool_s=_GAME_STEP,
        turns_max=30,
        group_share=0.5,
        hardness=0.25,
    ),
}
