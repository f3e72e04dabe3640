"""Rollouts whose log-probabilities are compared with those of the trainer's own model."""

import math
import statistics
from typing import Any, Final

import torch
from task import COMPLETION_TOKENS
from trl import GRPOTrainer

from rose.adapters.trl import TrlRollouts

# A larger difference shows a lost or doubled token: the two contexts then differ.
LOGPROB_MAX: Final = 1.0


class Checked:
    """A `rollout_func` of TRL that counts tokens and compares their log-probabilities."""

    def __init__(self, rollouts: TrlRollouts) -> None:
        self._rollouts = rollouts
        self.episodes = self.tokens = self.lost = 0
        self.kl: list[float] = []
        self.ratio: list[float] = []
        self.staleness: list[int] = []

    def __call__(self, prompts: list[str], trainer: GRPOTrainer) -> dict[str, list[Any]]:
        """Generate rollouts, and compare their log-probabilities."""
        output = self._rollouts(prompts, trainer)
        names = ("prompt_ids", "completion_ids", "logprobs", "env_mask")
        episodes = list(zip(*(output[name] for name in names), strict=True))
        differences: list[float] = []
        for (prompt, ids, logprobs, mask), own in zip(
            episodes, self._logprobs(trainer.model, episodes), strict=True
        ):
            spoken = zip(own[len(prompt) - 1 :], logprobs, mask, strict=False)  # `own` is padded
            differences += [theirs - ours for ours, theirs, is_model in spoken if is_model]
            is_whole = ids[-1] in trainer.eos_token_ids or len(ids) == COMPLETION_TOKENS
            self.lost += not is_whole
        self.lost += sum(abs(one) > LOGPROB_MAX for one in differences)
        self.kl.append(statistics.fmean(differences))
        self.ratio.append(statistics.fmean(math.exp(-one) for one in differences))
        self.staleness += output["staleness"]
        self.episodes += len(prompts)
        self.tokens += len(differences)
        return output

    @staticmethod
    @torch.no_grad()
    def _logprobs(model: Any, episodes: list[tuple[list[int], ...]]) -> list[list[float]]:
        """Return the model's log-probability of each token but the first, padded at the end."""
        rows = [torch.tensor(prompt + ids) for prompt, ids, *_ in episodes]
        padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        logprobs = model(input_ids=padded).logits[:, :-1].log_softmax(-1)
        own: list[list[float]] = logprobs.gather(2, padded[:, 1:, None])[..., 0].tolist()
        return own
