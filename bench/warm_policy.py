"""A policy that knows the language but not the way: the start of RL."""

from pathlib import Path

import numpy as np
import torch

from rose.demo.environments import GridWorld, Tokenizer
from rose.demo.environments.text import EOS
from rose.engines.transformers import load_model

_STEPS = 120
_BATCH = 64
_LR = 3e-3
_MOVES = "NESW"


def save_warm_policy(folder: Path, *, model: str, seed: int, world: GridWorld) -> None:
    """Teach a preset to answer every observation with a move and an end token, and save it."""
    torch.set_num_threads(1)
    policy = load_model(model, seed=seed)
    random = np.random.default_rng(seed)
    tokenizer = Tokenizer()
    adam = torch.optim.AdamW(policy.parameters(), lr=_LR)
    for _ in range(_STEPS):
        rows = []
        for _ in range(_BATCH):
            observation = world.reset(int(random.integers(1 << 20)))
            move = _MOVES[int(random.integers(len(_MOVES)))]
            rows.append((*tokenizer.prompt(observation), *tokenizer.encode(move), EOS))
        length = max(map(len, rows))
        # Padded in front, so that the answer is at the end of every row.
        tokens = torch.tensor([(0,) * (length - len(row)) + row for row in rows])
        logits = policy(input_ids=tokens, attention_mask=(tokens != 0).long()).logits[:, -3:-1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, -2:].flatten())
        adam.zero_grad()
        loss.backward()
        adam.step()
    policy.save_pretrained(folder)
