"""From random weights to a model that solves some of the tasks."""

import numpy as np
import torch
from torch import nn

from bench.trained.settings import Settings
from bench.trained.tasks import Language, draw_examples
from rose.engines.transformers import load_model
from rose_lab.demo.environments.text import PAD

_TEXT_EVERY = 4  # one of this many steps trains on text
_TEXT_WIDTH = 48
_WEIGHT_DECAY = 0.1
_GRAD_NORM_MAX = 1.0
_WARM_SHARE, _LAST_SHARE = 0.1, 0.1


def pretrain(settings: Settings) -> tuple[nn.Module, float]:
    """Return a model in fp32 whose weights are exact in bf16, and the mean of its last losses."""
    model = load_model(settings.model, seed=settings.seed)
    random = np.random.default_rng(settings.seed)
    language = Language(random)
    wanted = settings.pretraining
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(wanted.spread)
    adam = torch.optim.AdamW(
        model.parameters(), lr=wanted.lr, weight_decay=_WEIGHT_DECAY, fused=True
    )
    losses: list[float] = []
    for step in range(wanted.steps):
        if step % _TEXT_EVERY == 0:
            rows = language.draw(random, wanted.examples // _TEXT_EVERY, _TEXT_WIDTH)
        else:
            rows = draw_examples(random, wanted.examples)
        for group in adam.param_groups:
            group["lr"] = wanted.lr * _lr_share((step + 1) / wanted.steps)
        losses.append(_learn(model, adam, torch.tensor(rows)))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16())
    return model, float(np.mean(losses[-50:]))


def _lr_share(done: float) -> float:
    if done < _WARM_SHARE:
        return done / _WARM_SHARE
    return 1 - (1 - _LAST_SHARE) * (done - _WARM_SHARE) / (1 - _WARM_SHARE)


def _learn(model: nn.Module, adam: torch.optim.Optimizer, rows: torch.Tensor) -> float:
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(input_ids=rows, use_cache=False).logits[:, :-1]
    loss = torch.nn.functional.cross_entropy(
        logits.float().flatten(0, 1), rows[:, 1:].flatten(), ignore_index=PAD
    )
    adam.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), _GRAD_NORM_MAX)
    adam.step()
    return float(loss.detach())
