"""Environments of trajectories: a table of named environments, or distributions.

The table has a few numbers per environment, with sources, because nobody has published a
turn-by-turn run of the paper's tasks.
"""

from typing import Annotated, Final, TypeAlias

from msgspec import Meta

from rose.errors import InvalidArgument
from rose_lab.sim.scenario.distributions import (
    Constant,
    Distribution,
    Lognormal,
    Mixture,
    Pareto,
    WeightedPart,
)
from rose_lab.sim.scenario.fields import Share, Spec

_Turns: TypeAlias = Annotated[int, Meta(ge=1, le=4096)]


def _lognormals(*parts: tuple[float, float, float], most: float = 1e6) -> Mixture:
    """Return the mixture of (weight, median, sigma) components."""
    return Mixture(
        tuple(
            WeightedPart(weight, Lognormal(median, sigma, most=most))
            for weight, median, sigma in parts
        )
    )


class Drawn(Spec, frozen=True, tag_field="kind", tag="drawn"):
    """Trajectories drawn from distributions.

    Each trajectory draws its hardness; harder trajectories take more turns, and generate more
    tokens in each turn. A group has the same task, so its members share a part of their hardness.

    Args:
        turns: turns of a trajectory; rounded, at least 1.
        first_input: input tokens of the task, before the first turn.
        input: input tokens of the environment before each later turn.
        output: tokens that a turn generates.
        tool_s: seconds from the end of a turn to the start of the next.
        turns_max: most turns that the environment allows.
        group_share: share of the hardness that a group has in common, 0 to 1; with 1 all its
            members are equally hard.
        hardness: increase of the logarithm of a turn's tokens per standard deviation of hardness.
    """

    turns: Distribution
    first_input: Distribution
    input: Distribution
    output: Distribution
    tool_s: Distribution
    turns_max: _Turns = 4096
    group_share: Share = 0.5
    hardness: Annotated[float, Meta(ge=0, le=2)] = 0.0


class Named(Spec, frozen=True, tag_field="kind", tag="named"):
    """One of `ENVIRONMENTS`."""

    name: str

    def __post_init__(self) -> None:
        if self.name not in ENVIRONMENTS:
            raise InvalidArgument(
                f"name: must be one of {', '.join(ENVIRONMENTS)}, got '{self.name}'"
            )


Environment: TypeAlias = Drawn | Named

# Times of coding agents' tools: 86 % of calls return within a second, 95 % within ten (issue 285 of
# vllm-project/router). A lognormal goes through both points: sigma is ln 10 / (z95 - z86). The tail
# is cut at the time of a test run.
_TOOL_CALL: Final = Lognormal(median=0.0122, sigma=4.079, most=120.0)

# A step of a text game on a CPU pod takes milliseconds, but seconds when a pod is rescheduled.
# No measurement is published; the time is small beside the generation of a turn.
_GAME_STEP: Final = Mixture(
    (
        WeightedPart(0.98, Lognormal(median=0.05, sigma=0.5)),
        WeightedPart(0.02, Pareto(least=0.5, alpha=1.2, most=30.0)),
    )
)

# Mixtures of three parts, fitted by commit 2b333a7 to 710 sessions of a coding agent in production
# (derived from callanjfox/kv-cache-tester, Apache-2.0), with 47,948 later turns, 48,658 answers and
# 47,696 waits. The Kolmogorov-Smirnov distances are 0.016 for turns per session, 0.014 for inputs,
# 0.006 for outputs and 0.015 for waits.
_AGENT_TURNS: Final = _lognormals(
    (0.1096, 4.998, 0.3162), (0.458, 26.11, 0.7216), (0.4324, 101.1, 0.6058)
)
_AGENT_INPUT: Final = _lognormals(
    (0.433, 381.9, 0.5346), (0.4943, 1283.0, 0.8848), (0.0727, 9264.0, 1.5666)
)
_AGENT_OUTPUT: Final = _lognormals(
    (0.3328, 135.8, 0.29), (0.3564, 283.0, 0.5572), (0.3108, 473.5, 1.1695)
)
# The longest waits are for people; they are cut at a minute.
_AGENT_WAIT_S: Final = _lognormals(
    (0.3553, 5.443, 0.3529), (0.32, 12.15, 0.6126), (0.3247, 87.43, 1.7006), most=60.0
)

ENVIRONMENTS: Final[dict[str, Drawn]] = {
    # Bounds: ROLL's 20 steps (FrozenLakeEnv) and the paper's 32 Ki context. The shape reproduces
    # the published facts of the paper's runs: prompts are 77-86 % of the tokens, 75 % of an RL
    # step's trajectories end within 30 % of the step's time, and the tail is 5-10 times the median.
    "frozen-lake": Drawn(
        turns=Lognormal(median=4.0, sigma=0.7),
        first_input=Lognormal(median=900.0, sigma=0.1),
        input=Lognormal(median=760.0, sigma=0.35),
        output=Lognormal(median=150.0, sigma=0.6, most=2048.0),
        tool_s=_GAME_STEP,
        turns_max=20,
        hardness=0.15,
    ),
    # As above with the 30 steps of Trinity's ALFWorld; rooms have longer descriptions.
    "alfworld": Drawn(
        turns=Lognormal(median=6.0, sigma=0.75),
        first_input=Lognormal(median=1200.0, sigma=0.15),
        input=Lognormal(median=620.0, sigma=0.4),
        output=Lognormal(median=110.0, sigma=0.6, most=2048.0),
        tool_s=_GAME_STEP,
        turns_max=30,
        hardness=0.1,
    ),
    # Tokens of the coding agent, up to the 100 steps of SkyRL-Agent, with tools called by a
    # program: no waits for people. The first prompt holds an issue and the instructions.
    "swe-bench": Drawn(
        turns=_AGENT_TURNS,
        first_input=Lognormal(median=3000.0, sigma=0.5),
        input=_AGENT_INPUT,
        output=_AGENT_OUTPUT,
        tool_s=_TOOL_CALL,
        turns_max=100,
    ),
    # The sessions of the coding agent with a constant first prompt. The real first prompts, such as
    # descriptions of tools, are mostly the same for all sessions, and fill a context by themselves.
    "coding-agent": Drawn(
        turns=_AGENT_TURNS,
        first_input=Constant(4096.0),
        input=_AGENT_INPUT,
        output=_AGENT_OUTPUT,
        tool_s=_AGENT_WAIT_S,
    ),
}
