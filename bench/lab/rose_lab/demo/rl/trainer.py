"""Policy-gradient training with fp32 masters and AdamW."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from rose.errors import InvalidArgument, check
from rose_lab.demo.rl.policy_gradient import (
    clipped_loss,
    first_groups,
    group_advantages,
    microbatches,
    token_logprobs,
)
from rose_lab.demo.rl.settings import TrainerSettings
from rose_lab.demo.rl.trajectory import TEMPERATURE, Trajectory

Bits: TypeAlias = npt.NDArray[np.uint16]


class Masters:
    """One flat fp32 row of master weights for a model that computes with their rounded values.

    The model's parameters become views of a second row, which always holds the masters rounded to
    bf16: training uses the weights that are served. Gradients are taken at the rounded weights and
    applied to the masters (straight-through). Rows are in the order of `model.named_parameters()`,
    where tied weights come once.

    Args:
        model: a model in fp32 on the CPU; its parameters must not be replaced from outside.

    Raises:
        InvalidArgument: a parameter is not fp32 on the CPU.
    """

    def __init__(self, model: nn.Module) -> None:
        parameters = list(model.parameters())
        for parameter in parameters:
            if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
                raise InvalidArgument(
                    f"a parameter is {parameter.dtype} on {parameter.device}: the trainer takes a "
                    "model in torch.float32 on the CPU"
                )
        self.row = nn.Parameter(torch.cat([one.detach().reshape(-1) for one in parameters]))
        # The (n,) fp32 gradient of all masters; the model's backward adds to it.
        self.row.grad = self.gradient = torch.zeros_like(self.row)
        self._served = torch.empty_like(self.row, requires_grad=False)
        self._rounded = torch.empty(self.row.numel(), dtype=torch.bfloat16)
        first = 0
        for parameter in parameters:
            place = slice(first, first + parameter.numel())
            parameter.data = self._served[place].view(parameter.shape)
            # Backward adds to an existing gradient in place, so it writes into `self.gradient`.
            parameter.grad = self.gradient[place].view(parameter.shape)
            parameter.requires_grad_(True)
            first += parameter.numel()
        self.round()

    def round(self) -> None:
        """Update the model's weights: the masters rounded to nearest, ties to even."""
        with torch.no_grad():
            self._rounded.copy_(self.row)
            self._served.copy_(self._rounded)

    def bits(self) -> Bits:
        """Return the (n,) bf16 bits of the served weights, as a read-only view."""
        bits: Bits = self._rounded.view(torch.uint16).numpy()
        bits.flags.writeable = False
        return bits


_ROWS: Final = ("exp_avg", "exp_avg_sq")  # AdamW's state of each weight
_CLIP: Final = 0.2  # maximum distance of a token's ratio from 1
_GRAD_NORM_MAX: Final = 1.0  # larger gradients are scaled down to this norm
_MICROBATCH_TOKENS: Final = 2048  # padded tokens of one forward pass


@dataclass(frozen=True, slots=True)
class TrainStats:
    """Statistics of one step. Kept trajectories are neither too old nor passed over.

    Args:
        loss: mean loss per generated token of the kept trajectories.
        reward_mean: mean reward of all submitted trajectories.
        staleness: versions since each trajectory's oldest token, dropped trajectories included.
        grad_norm: gradient norm before clipping.
        tokens: generated tokens of the kept trajectories.
        dropped_stale: number of trajectories too old to learn from.
        passed_over: number of trajectories beyond `TrainerSettings.learned_max`, or in groups
            without differing rewards.
        is_changed: whether the weights changed; False if rewards were equal within each group.
    """

    loss: float
    reward_mean: float
    staleness: tuple[int, ...]
    grad_norm: float
    tokens: int
    dropped_stale: int
    passed_over: int
    is_changed: bool


@dataclass(frozen=True, slots=True)
class TrainerState:
    """The trainer's whole state. Rows are (n,) fp32 views, in the order of the masters."""

    steps: int
    masters: npt.NDArray[np.float32]
    exp_avg: npt.NDArray[np.float32]
    exp_avg_sq: npt.NDArray[np.float32]


class PolicyTrainer:
    """Trains a model deterministically: equal calls give equal weights. Single-threaded.

    Args:
        model: a causal language model in fp32 on the CPU, which maps (input_ids, attention_mask) to
            logits. The trainer owns the model; it computes with the rounded weights from now on.
        settings: trainer settings.
    """

    def __init__(self, model: nn.Module, settings: TrainerSettings) -> None:
        self._model = model.eval()  # without dropout, which serving does not use either
        self._settings = settings
        self._masters = Masters(model)
        self._steps = 0
        row = self._masters.row
        # With one row and the fused loop, a step is one pass over memory.
        self._adam = torch.optim.AdamW([row], lr=settings.lr, weight_decay=0.0, fused=True)

    @property
    def steps(self) -> int:
        """Number of weight changes."""
        return self._steps

    def bits(self) -> Bits:
        """Return the (n,) bf16 bits to serve, in the order of `named_parameters()`.

        The result is a read-only view that the next step changes; copy it to keep it.
        """
        return self._masters.bits()

    def step(self, trajectories: Sequence[Trajectory], *, published: int) -> TrainStats:
        """Take one training step; rewards are compared only within a group of these trajectories.

        Weights and moments stay unchanged if rewards are equal within each group, or if all
        trajectories are too old.

        Args:
            trajectories: trajectories to learn from, at least one.
            published: newest published version; determines each trajectory's age.

        Raises:
            InternalError: a trajectory is newer than `published`, or the gradient is not finite;
                weights and moments are unchanged.
        """
        staleness = tuple(published - one.version_min for one in trajectories)
        check(min(staleness) >= 0, f"a trajectory is newer than version {published}, the newest")
        fresh = [
            one
            for one, age in zip(trajectories, staleness, strict=True)
            if age <= self._settings.max_staleness
        ]
        kept = first_groups(fresh, self._settings.learned_max)
        tokens = sum(one.generated_tokens for one in kept)
        loss, has_learned = self._add_gradients(kept, tokens)
        grad_norm = self._take_step() if has_learned else 0.0
        return TrainStats(
            loss=loss,
            reward_mean=sum(one.reward for one in trajectories) / len(trajectories),
            staleness=staleness,
            grad_norm=grad_norm,
            tokens=tokens,
            dropped_stale=len(trajectories) - len(fresh),
            passed_over=len(fresh) - len(kept),
            is_changed=has_learned,
        )

    def state(self) -> TrainerState:
        """Return the state for a checkpoint, as views that the next step changes."""
        masters = self._masters.row.detach()
        kept = self._adam.state[self._masters.row]
        rows = [kept[name] if kept else torch.zeros_like(masters) for name in _ROWS]
        return TrainerState(self._steps, masters.numpy(), *(row.numpy() for row in rows))

    def restore(self, state: TrainerState) -> None:
        """Restore a state of the same model, bit for bit."""
        row = self._masters.row
        with torch.no_grad():
            row.copy_(torch.tensor(state.masters))
        self._adam.state[row] = {
            "step": torch.tensor(float(state.steps)),
            "exp_avg": torch.tensor(state.exp_avg),
            "exp_avg_sq": torch.tensor(state.exp_avg_sq),
        }
        self._steps = state.steps
        self._masters.round()

    def _add_gradients(self, kept: Sequence[Trajectory], tokens: int) -> tuple[float, bool]:
        """Accumulate gradients; return the loss, and whether any trajectory had an advantage."""
        advantages = group_advantages([one.reward for one in kept], [one.group for one in kept])
        self._masters.gradient.zero_()
        loss, has_learned = 0.0, False
        for batch in microbatches(kept, advantages, tokens_max=_MICROBATCH_TOKENS):
            with torch.autocast("cpu", torch.bfloat16, enabled=self._settings.is_bf16):
                output = self._model(
                    input_ids=batch.tokens, attention_mask=batch.is_token, use_cache=False
                )
            logits = output.logits[:, :-1][batch.is_learned]
            logprobs = token_logprobs(logits, batch.targets, TEMPERATURE)
            # Divided by all tokens of the step, so that the cut into microbatches does not matter.
            part = clipped_loss(logprobs, batch.behaviour, batch.advantages, clip=_CLIP) / tokens
            part.backward()
            loss, has_learned = loss + float(part.detach()), True
        return loss, has_learned

    def _take_step(self) -> float:
        gradient = self._masters.gradient
        norm = float(torch.linalg.vector_norm(gradient))
        check(math.isfinite(norm), f"the gradient of step {self._steps + 1} is {norm}")
        if norm > _GRAD_NORM_MAX:
            gradient.mul_(_GRAD_NORM_MAX / norm)
        self._adam.step()
        self._steps += 1
        self._masters.round()
        return norm
