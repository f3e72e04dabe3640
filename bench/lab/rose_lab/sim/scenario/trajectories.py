"""Random trajectories of a job, from an environment's distributions."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from rose.errors import InvalidArgument, check
from rose.units import MS_PER_S
from rose_lab.sim.cluster.world import Trajectories
from rose_lab.sim.scenario.environments import Drawn

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

# Draws are clipped to this. No context is this long, so a larger draw means a wrong unit.
_TOKENS_MAX: Final = float(1 << 30)


@dataclass(frozen=True, slots=True)
class _Turns:
    """All turns before trajectories are cut by the context limit; columns as in `Trajectories`."""

    first_turn: Ints
    input: Ints
    output: Ints
    tool_ms: Floats


def drawn_trajectories(
    environment: Drawn,
    *,
    groups: int,
    group: int,
    context_tokens: int,
    random: np.random.Generator,
) -> Trajectories:
    """Draw the trajectories of some groups.

    Args:
        environment: distributions to draw from.
        groups: number of groups, > 0.
        group: trajectories per group, > 0.
        context_tokens: longest context of a trajectory, > 1.
        random: random generator; the order of draws is fixed.
    """
    count = groups * group
    share = environment.group_share
    in_common = np.repeat(random.standard_normal(groups), group)
    hard = np.sqrt(share) * in_common + np.sqrt(1 - share) * random.standard_normal(count)
    # The hardest trajectory gets the most turns; the distribution of turns is unchanged.
    turns = np.empty(count, dtype=np.int64)
    wanted = np.sort(environment.turns.draw(random, count))
    turns[np.argsort(hard, kind="stable")] = _whole(wanted, environment.turns_max)
    first_turn = np.concatenate(([0], np.cumsum(turns)))
    total = int(first_turn[-1])
    inputs = environment.input.draw(random, total)
    inputs[first_turn[:-1]] = np.repeat(environment.first_input.draw(random, groups), group)
    # The mean of the factor is 1.
    spread = environment.hardness
    factor = np.exp(spread * hard - spread**2 / 2)
    output = environment.output.draw(random, total) * np.repeat(factor, turns)
    tool_ms = MS_PER_S * environment.tool_s.draw(random, total)
    turns_of_all = _Turns(first_turn, _whole(inputs), _whole(output), tool_ms)
    return _cut(turns_of_all, np.repeat(np.arange(groups), group), context_tokens)


def _whole(values: Floats, most: float = _TOKENS_MAX) -> Ints:
    rounded: Ints = np.clip(np.rint(values), 1, most).astype(np.int64)
    return rounded


def _cut(turns: _Turns, group: Ints, context_tokens: int) -> Trajectories:
    """End each trajectory when its context is full; the last answer may be cut short."""
    if context_tokens < 2:
        raise InvalidArgument(
            f"a context of {context_tokens} tokens holds no turn; give at least 2"
        )
    starts, lengths = turns.first_turn[:-1], np.diff(turns.first_turn)
    inputs = turns.input.copy()
    inputs[starts] = np.minimum(inputs[starts], context_tokens - 1)
    ends = np.cumsum(inputs + turns.output)
    base = np.repeat(np.concatenate(([0], ends))[starts], lengths)
    before_output = ends - base - turns.output
    is_kept = before_output < context_tokens
    output = np.minimum(turns.output, context_tokens - before_output)[is_kept]
    kept = np.add.reduceat(is_kept.astype(np.int64), starts)
    check(bool((kept > 0).all()), "a first turn did not fit its context")
    first_turn = np.concatenate(([0], np.cumsum(kept)))
    tool_ms = turns.tool_ms[is_kept]
    tool_ms[first_turn[1:] - 1] = 0.0  # no tool follows the last turn
    return Trajectories(first_turn, inputs[is_kept], output, tool_ms, group.astype(np.int64))
