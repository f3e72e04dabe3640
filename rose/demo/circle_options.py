"""The circle of the demo: sizes that suit two cores and six minutes."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

from rose.demo.environments import Tokenizer, ToolWaits
from rose.demo.rl.circle_settings import CircleSettings, DedicatedWorker, TrainerPace
from rose.demo.rl.loop import LoopSettings
from rose.demo.rl.supervisor import RestartPolicy
from rose.engines.transformers import Model
from rose.errors import InvalidArgument
from rose.scheduler import PlacementPolicy, SchedulerSettings
from rose.traces import read_agent_trace, tool_waits

IN_FLIGHT: Final = 32
# In RL of a trained model few weights change in a step; a higher rate would change more.
LR: Final = 1e-6
_GROUP_SIZE: Final = 4
_BATCH: Final = 16
# What half a core learns from while the workers finish a batch; the rest is passed over.
_LEARNED_MAX: Final = 8
_MAX_STALENESS: Final = 4
_TURN_TOKENS_MAX: Final = 24
_CONTEXT_TOKENS_MAX: Final = 512
_PUBLISH_EVERY_S: Final = 4.0
_CHECKPOINT_EVERY: Final = 5
# Tools of coding agents take ten seconds in the median; turns here are as much shorter.
_TOOL_SCALE: Final = 1 / 32
# Longer ones are people who think, not tools.
_TOOL_WAIT_MAX_S: Final = 60.0
_QUANTILES: Final = 1000


def circle_settings(
    *,
    model: str,
    seed: int,
    folder: Path,
    cores: frozenset[int],
    seats: int,
) -> CircleSettings:
    """Return the circle of the demo.

    Args:
        model: the policy.
        seed: of weights, tasks and sampling.
        folder: for the trainer's checkpoint.
        cores: of the trainer and the dedicated worker.
        seats: turns at once on the dedicated worker.
    """
    return CircleSettings(
        model=model,
        seed=seed,
        folder=folder,
        cores=cores,
        is_background=True,
        loop=LoopSettings(
            in_flight=IN_FLIGHT,
            group_size=_GROUP_SIZE,
            turn_tokens_max=_TURN_TOKENS_MAX,
            context_tokens_max=_CONTEXT_TOKENS_MAX,
            temperature=1.0,
        ),
        scheduler=SchedulerSettings(
            max_staleness=_MAX_STALENESS, batch_trajectories=_BATCH, worker_lag_max=2
        ),
        policy=PlacementPolicy.JOINT,
        pace=TrainerPace(
            lr=LR,
            batch=_BATCH,
            learned_max=_LEARNED_MAX,
            # After a restart numbers jump by what was reserved, so what is under way looks older.
            max_staleness=2 * _MAX_STALENESS + _CHECKPOINT_EVERY,
            checkpoint_every=_CHECKPOINT_EVERY,
            publish_every_s=_PUBLISH_EVERY_S,
        ),
        dedicated=DedicatedWorker(seats=seats, kv_tokens=seats * 2 * _CONTEXT_TOKENS_MAX),
        restarts=RestartPolicy(),
    )


def check_policy(name: str, model: Model) -> None:
    """Refuse a policy that cannot say what environments hear."""
    if model.config.vocab_size < Tokenizer.vocabulary:
        raise InvalidArgument(
            f"--rollout-model {name} has a vocabulary of {model.config.vocab_size}: the "
            f"environments need {Tokenizer.vocabulary}; choose another, or give --synthetic"
        )


def tool_wait_s(path: str | None, *, seed: int) -> Callable[[int, int], float]:
    """Return how long a tool takes, by trajectory and turn.

    Args:
        path: of a trace of agents; None for the built-in distribution of one.
        seed: of the draws.

    Raises:
        InvalidArgument: the file cannot be read, or has no waits.
    """
    waits_s = tool_waits(_QUANTILES) if path is None else read_agent_trace(path).tool_waits_s()
    return ToolWaits(np.minimum(waits_s, _TOOL_WAIT_MAX_S), scale=_TOOL_SCALE, seed=seed).wait_s
