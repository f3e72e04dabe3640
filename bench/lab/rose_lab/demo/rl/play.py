"""Plays one trajectory, alternating between environment and scheduler."""

import asyncio
from collections.abc import Callable
from typing import Final

from rose.scheduler import ElasticRolloutScheduler, Sampling
from rose_lab.demo.environments import Task, Tokenizer
from rose_lab.demo.environments.text import EOS
from rose_lab.demo.rl.settings import RolloutLimits
from rose_lab.demo.rl.trajectory import NOT_GENERATED, TEMPERATURE, Trajectory

_TOKENIZER: Final = Tokenizer()


async def play(
    scheduler: ElasticRolloutScheduler,
    task: Task,
    *,
    number: int,
    seed: int,
    settings: RolloutLimits,
    wait_s: Callable[[int, int], float],
) -> Trajectory:
    """Play a trajectory until its episode ends, or its context has no room for another turn.

    Args:
        scheduler: generates the turns.
        task: the group's task; no other trajectory uses its environment.
        number: trajectory number, unique in a run.
        seed: sampling seed, >= 0.
        settings: size limits.
        wait_s: maps `(trajectory, turn)` to the duration of that turn's tool, in seconds.

    Raises:
        TrajectoryDropped: the scheduler dropped the trajectory.
        Unavailable: the scheduler was closed.
    """
    environment = task.environment
    tokens = list(_TOKENIZER.prompt(environment.reset(task.seed)))
    logprobs, versions = [0.0] * len(tokens), [NOT_GENERATED] * len(tokens)
    reward, turn = 0.0, 0
    await scheduler.start(number, group=task.group, seed=seed)
    while True:
        room = settings.context_tokens_max - len(tokens)
        # Even an observation that fills the context gets one token of answer.
        tokens_max = max(1, min(settings.turn_tokens_max, room))
        sampling = Sampling(tokens_max, TEMPERATURE, (EOS,))
        result = await scheduler.generate(number, turn=turn, prompt=tokens, sampling=sampling)
        tokens += result.tokens
        logprobs += result.logprobs
        versions += result.versions
        step = environment.step(_TOKENIZER.decode(result.tokens))
        reward += step.reward
        turn += 1
        observation = _TOKENIZER.prompt(step.observation)
        room = settings.context_tokens_max - settings.turn_tokens_max
        if step.is_over or len(tokens) + len(observation) > room:
            break
        tokens += observation
        logprobs += [0.0] * len(observation)
        versions += [NOT_GENERATED] * len(observation)
        if step.tool is not None:
            await asyncio.sleep(wait_s(number, turn - 1))
    await scheduler.finish(number)
    return Trajectory(
        number=number,
        group=task.group,
        seed=task.seed,
        environment=environment.name,
        tokens=tuple(tokens),
        is_generated=tuple(version != NOT_GENERATED for version in versions),
        logprobs=tuple(logprobs),
        versions=tuple(versions),
        reward=reward,
        turns=turn,
    )
