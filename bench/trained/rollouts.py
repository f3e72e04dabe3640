"""Rollouts of the tasks by the current weights, and their rewards."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from bench.trained.tasks import LENGTHS, Task, draw_task
from rose_lab.demo.environments.text import EOS
from rose_lab.demo.rl.policy_gradient import token_logprobs
from rose_lab.demo.rl.trajectory import NOT_GENERATED, Trajectory


def roll_out(
    model: nn.Module,
    *,
    prompts: int,
    samples: int,
    version: int,
    random: np.random.Generator,
    sampling: torch.Generator,
) -> list[Trajectory]:
    """Return `samples` answers to each of `prompts` tasks; the reward is 1 for a right one,
    otherwise 0.

    Args:
        model: model with the weights of `version`.
        prompts: number of tasks, all of one length.
        samples: rollouts per task.
        version: version of the weights.
        random: generator of the tasks.
        sampling: generator of the tokens.
    """
    length = int(random.choice(LENGTHS))
    tasks = [draw_task(random, length) for _ in range(prompts)]
    asked = [task for task in tasks for _ in range(samples)]
    tokens, logprobs = _said(model, asked, length + 1, sampling)
    return [
        _trajectory(task, said, logprob, number=number, group=number // samples, version=version)
        for number, (task, said, logprob) in enumerate(
            zip(asked, tokens.tolist(), logprobs.tolist(), strict=True)
        )
    ]


@torch.no_grad()
def _said(
    model: nn.Module, tasks: Sequence[Task], most: int, sampling: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (b, most) tokens and their logprobs; those behind an end token are invalid."""
    inputs = torch.tensor([task.prompt for task in tasks])
    cache, tokens, logprobs = None, [], []
    for _ in range(most):
        with torch.autocast("cpu", torch.bfloat16):
            output = model(input_ids=inputs, past_key_values=cache, use_cache=True)
        logits, cache = output.logits[:, -1].float(), output.past_key_values
        inputs = torch.multinomial(logits.softmax(-1), 1, generator=sampling)
        tokens.append(inputs[:, 0])
        logprobs.append(token_logprobs(logits, inputs[:, 0], 1.0))
    return torch.stack(tokens, 1), torch.stack(logprobs, 1)


def _trajectory(
    task: Task, said: list[int], logprobs: list[float], *, number: int, group: int, version: int
) -> Trajectory:
    end = said.index(EOS) + 1 if EOS in said else len(said)
    read = len(task.prompt)
    return Trajectory(
        number=number,
        group=group,
        seed=0,
        environment="tasks",
        tokens=(*task.prompt, *said[:end]),
        is_generated=(False,) * read + (True,) * end,
        logprobs=(0.0,) * read + tuple(min(0.0, one) for one in logprobs[:end]),
        versions=(NOT_GENERATED,) * read + (version,) * end,
        reward=float(tuple(said[:end]) == task.answer),
        turns=1,
    )
