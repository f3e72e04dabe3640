"""Runs of RL, with a log of every step and the last versions."""

import copy
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from bench.trained.pretraining import pretrain
from bench.trained.rollouts import roll_out
from bench.trained.settings import Point, Run, Settings
from bench.trained.statistics import spans_of, step_statistics
from rose.errors import check
from rose_lab.demo.rl.settings import TrainerSettings
from rose_lab.demo.rl.trainer import PolicyTrainer

Bits = npt.NDArray[np.uint16]

_FRUITLESS_MAX = 20


@dataclass(frozen=True, slots=True)
class Recording:
    """Results of training.

    Args:
        versions: (kept, n) bf16 bits of the last versions of each run.
        log: log of the runs, in JSON's types.
    """

    versions: tuple[Bits, ...]
    log: dict[str, Any]


def record(settings: Settings) -> Recording:
    """Train, which takes minutes."""
    with _threads(settings.threads):
        model, loss = pretrain(settings)
        spans = spans_of(model)
        # Every run starts from the same weights, and draws the same tasks.
        runs = [_run(copy.deepcopy(model), run, settings) for run in settings.runs]
    recorded = tuple(versions for versions, _ in runs)
    points = {
        point.name: step_statistics(*pair_of(recorded, point), spans) for point in settings.points
    }
    log = {"pretraining_loss": loss, "runs": [steps for _, steps in runs], "points": points}
    return Recording(recorded, log)


def pair_of(versions: Sequence[Bits], point: Point) -> tuple[Bits, Bits]:
    """Return (new, old) of a point, from the versions of each run."""
    run = versions[point.run]
    return run[-1], run[-1 - point.steps]


def _run(model: nn.Module, run: Run, settings: Settings) -> tuple[Bits, dict[str, Any]]:
    spans = spans_of(model)
    trainer = PolicyTrainer(model, TrainerSettings(lr=run.lr, is_bf16=True))
    random = np.random.default_rng(settings.seed)
    sampling = torch.Generator().manual_seed(settings.seed)
    versions = deque([trainer.bits().copy()], maxlen=run.kept)
    steps: list[dict[str, Any]] = []
    fruitless = 0
    while len(steps) < run.steps:
        check(fruitless < _FRUITLESS_MAX, "no rollout is better than another: pretrain for longer")
        rollouts = roll_out(
            model,
            prompts=settings.prompts,
            samples=settings.samples,
            version=trainer.steps,
            random=random,
            sampling=sampling,
        )
        stats = trainer.step(rollouts, published=trainer.steps)
        if not stats.is_changed:
            fruitless += 1  # no task has both right and wrong answers
            continue
        fruitless = 0
        versions.append(trainer.bits().copy())
        learned = {"reward_mean": stats.reward_mean, "grad_norm": stats.grad_norm}
        steps.append(learned | step_statistics(versions[-1], versions[-2], spans))
    return np.stack(list(versions)), {"lr": run.lr, "steps": steps}


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
