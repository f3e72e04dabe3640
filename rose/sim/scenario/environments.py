"""What the trajectories of a job are made of: a table of environments, or distributions.

The table holds a few numbers for each environment, with where they come from: of the tasks of the
paper nobody has published a run turn by turn.
"""

from typing import Annotated, Final, TypeAlias

from msgspec import Meta

from rose.errors import InvalidArgument
from rose.sim.scenario.distributions import (
    Constant,
    Distribution,
    Lognormal,
    Mixture,
    Pareto,
    Part,
)
from rose.sim.scenario.fields import Share, Spec

_Turns: TypeAlias = Annotated[int, Meta(ge=1, le=4096)]


def _lognormals(*parts: tuple[float, float, float], most: float = 1e6) -> Mixture:
    """Return the mixture of some (weight, median, sigma)."""
    return Mixture(
        tuple(Part(weight, Lognormal(median, sigma, most=most)) for weight, median, sigma in parts)
    )


class Drawn(Spec, frozen=True, tag_field="kind", tag="drawn"):
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

    turns: Distribution
    first_heard: Distribution
    heard: Distribution
    said: Distribution
    tool_s: Distribution
    turns_max: _Turns = 4096
    group_share: Share = 0.5
    hardness: Annotated[float, Meta(ge=0, le=2)] = 0.0


class Named(Spec, frozen=True, tag_field="kind", tag="named"):
    """One of `ENVIRONMENTS`.

    Args:
        name: of it.
    """

    name: str

    def __post_init__(self) -> None:
        """Refuse a name that is not in the table."""
        if self.name not in ENVIRONMENTS:
            raise InvalidArgument(
                f"name: no environment '{self.name}'; there are {', '.join(ENVIRONMENTS)}"
            )


Environment: TypeAlias = Drawn | Named

# What tools of coding agents take: 86 % of calls return within a second, 95 % within ten (issue
# 285 of vllm-project/router). A lognormal through both: sigma is ln 10 / (z95 - z86). The tail is
# cut at what a test run may take.
_TOOL_CALL: Final = Lognormal(median=0.0122, sigma=4.079, most=120.0)

# A step of a text game on a CPU pod: milliseconds, but a pod that is rescheduled takes seconds.
# Nobody has published it; it is small beside what a turn says.
_GAME_STEP: Final = Mixture(
    (
        Part(0.98, Lognormal(median=0.05, sigma=0.5)),
        Part(0.02, Pareto(least=0.5, alpha=1.2, most=30.0)),
    )
)

# Fitted (as commit 2b333a7 does) with three parts to 710 sessions of a coding agent in production
# (derived from callanjfox/kv-cache-tester, Apache-2.0): 710 sessions, 47,948 later turns, 48,658
# answers and 47,696 waits. The Kolmogorov-Smirnov distances are 0.016, 0.014, 0.006 and 0.015.
_AGENT_TURNS: Final = _lognormals(
    (0.1096, 4.998, 0.3162), (0.458, 26.11, 0.7216), (0.4324, 101.1, 0.6058)
)
_AGENT_HEARD: Final = _lognormals(
    (0.433, 381.9, 0.5346), (0.4943, 1283.0, 0.8848), (0.0727, 9264.0, 1.5666)
)
_AGENT_SAID: Final = _lognormals(
    (0.3328, 135.8, 0.29), (0.3564, 283.0, 0.5572), (0.3108, 473.5, 1.1695)
)
# The longest waits are of people; they are cut at a minute.
_AGENT_WAIT_S: Final = _lognormals(
    (0.3553, 5.443, 0.3529), (0.32, 12.15, 0.6126), (0.3247, 87.43, 1.7006), most=60.0
)

ENVIRONMENTS: Final[dict[str, Drawn]] = {
    # The bounds are ROLL's (FrozenLakeEnv: 20 steps) and the paper's 32 Ki context; the shape is
    # chosen so that what is published of the paper's runs holds: prompts are 77-86 % of the tokens,
    # P75 of a step's trajectories ends within 30 % of its time, the tail is 5-10 times the median.
    "frozen-lake": Drawn(
        turns=Lognormal(median=4.0, sigma=0.7),
        first_heard=Lognormal(median=900.0, sigma=0.1),
        heard=Lognormal(median=760.0, sigma=0.35),
        said=Lognormal(median=150.0, sigma=0.6, most=2048.0),
        tool_s=_GAME_STEP,
        turns_max=20,
        hardness=0.15,
    ),
    # As above with the 30 steps of Trinity's ALFWorld; rooms are described at greater length.
    "alfworld": Drawn(
        turns=Lognormal(median=6.0, sigma=0.75),
        first_heard=Lognormal(median=1200.0, sigma=0.15),
        heard=Lognormal(median=620.0, sigma=0.4),
        said=Lognormal(median=110.0, sigma=0.6, most=2048.0),
        tool_s=_GAME_STEP,
        turns_max=30,
        hardness=0.1,
    ),
    # Tokens as the coding agent's, up to the 100 steps of SkyRL-Agent, with tools that are called
    # by a program: no person is waited for. The first prompt holds an issue and the instructions.
    "swe-bench": Drawn(
        turns=_AGENT_TURNS,
        first_heard=Lognormal(median=3000.0, sigma=0.5),
        heard=_AGENT_HEARD,
        said=_AGENT_SAID,
        tool_s=_TOOL_CALL,
        turns_max=100,
    ),
    # The sessions of the trace, but for their first prompts: most of one, such as descriptions of
    # tools, is the same for all sessions and fills a context by itself.
    "coding-agent": Drawn(
        turns=_AGENT_TURNS,
        first_heard=Constant(4096.0),
        heard=_AGENT_HEARD,
        said=_AGENT_SAID,
        tool_s=_AGENT_WAIT_S,
    ),
}
