"""Rollouts whose tokens are compared with what the trainer's own model says of them."""

import math
import statistics
from typing import Any, Final

import torch
from task import COMPLETION_TOKENS
from trl import GRPOTrainer

from rose.adapters.trl import TrlRollouts

# After a lost or doubled token the model's logprobs are those of another context.
LOGPROB_MAX: Final = 1.0


class Checked:
    """Rollouts as a `rollout_func`, with counts and differences of log-probabilities."""

    def __init__(self, rollouts: TrlRollouts) -> None:
        self._rollouts = rollouts
        self.episodes = self.tokens = self.lost = 0
        self.kl: list[float] = []
        self.ratio: list[float] = []
        self.staleness: list[int] = []

    def __call__(self, prompts: list[str], trainer: GRPOTrainer) -> dict[str, list[Any]]:
        """Generate, and compare."""
        said = self._rollouts(prompts, trainer)
        rows = (said[name] for name in ("prompt_ids", "completion_ids", "logprobs", "env_mask"))
        differences: list[float] = []
        for prompt, ids, logprobs, mask in zip(*rows, strict=True):
            with torch.no_grad():
                logits = trainer.model(input_ids=torch.tensor([prompt + ids])).logits[0]
            ours = logits[len(prompt) - 1 : -1].log_softmax(-1)[range(len(ids)), ids].tolist()
            spoken = zip(ours, logprobs, mask, strict=True)
            differences += [theirs - own for own, theirs, is_model in spoken if is_model]
            is_whole = ids[-1] in trainer.eos_token_ids or len(ids) == COMPLETION_TOKENS
            self.lost += not is_whole
        self.lost += sum(abs(one) > LOGPROB_MAX for one in differences)
        self.kl.append(statistics.fmean(differences))
        self.ratio.append(statistics.fmean(math.exp(-one) for one in differences))
        self.staleness += said["staleness"]
        self.episodes += len(prompts)
        self.tokens += len(differences)
        return said
