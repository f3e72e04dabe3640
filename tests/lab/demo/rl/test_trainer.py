"""What is learned: the reference's step exactly, what was rewarded, and nothing from equals."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from rose.errors import InternalError, InvalidArgument
from rose_lab.demo.rl import trainer as trainer_module
from rose_lab.demo.rl.settings import TrainerSettings
from rose_lab.demo.rl.trainer import PolicyTrainer
from rose_lab.demo.rl.trajectory import TEMPERATURE
from tests.lab.demo.rl.micro import logprobs_of, micro_model, trajectory
from tests.reference import policy_gradient as reference

SETTINGS = TrainerSettings(lr=1e-3)
SAID = ([70, 71, 1], [80, 1], [90, 91, 92, 1], [99, 1])


def four(version: int = 0, **changes):
    """Two groups of two; the first of each did better."""
    rewards = (1.0, 0.0, 0.5, 0.25)
    return [
        replace(trajectory(n, said, reward=reward, group=n // 2, version=version), **changes)
        for n, (said, reward) in enumerate(zip(SAID, rewards, strict=True))
    ]


def rounded(model) -> torch.Tensor:
    flat = torch.cat([one.detach().reshape(-1) for _, one in model.named_parameters()])
    return flat.to(torch.bfloat16)


def plain_gradient(model, trajectories) -> tuple[float, np.ndarray]:
    """Return loss and gradient: one trajectory and one token at a time, no padding."""
    advantages = reference.advantages(
        [one.reward for one in trajectories], [one.group for one in trajectories]
    )
    tokens, loss = sum(one.generated_tokens for one in trajectories), 0.0
    model.zero_grad()
    for one, advantage in zip(trajectories, advantages, strict=True):
        logits = model(input_ids=torch.tensor([one.tokens])).logits[0]
        by_logits = np.zeros(logits.shape)
        for at in range(1, len(one.tokens)):
            if one.is_generated[at]:
                value, by_logits[at - 1] = reference.token_loss(
                    logits[at - 1].detach().numpy(),
                    one.tokens[at],
                    behaviour=one.logprobs[at],
                    advantage=advantage,
                    clip=trainer_module._CLIP,
                    temperature=TEMPERATURE,
                )
                loss += value / tokens
        logits.backward(torch.tensor(by_logits / tokens, dtype=torch.float32))
    flat = np.concatenate([p.grad.numpy().reshape(-1) for _, p in model.named_parameters()])
    return loss, flat.astype(np.float64)


@pytest.mark.parametrize(
    ("microbatch_tokens", "grad_norm_max"),
    [(1, 1e-3), (16, 1e9), (4096, 1e-3)],
)
def test_a_step_is_the_references(
    microbatch_tokens: int, grad_norm_max: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_module, "_MICROBATCH_TOKENS", microbatch_tokens)
    monkeypatch.setattr(trainer_module, "_GRAD_NORM_MAX", grad_norm_max)
    model, plain = micro_model(), micro_model()
    masters = torch.cat([p.detach().reshape(-1) for p in plain.parameters()]).double().numpy()
    trainer, moments = PolicyTrainer(model, SETTINGS), (np.zeros(1), np.zeros(1))
    for step in (1, 2):
        row = torch.tensor(masters).to(torch.bfloat16).float()
        torch.nn.utils.vector_to_parameters(row, plain.parameters())  # served weights are rounded
        loss, gradient = plain_gradient(plain, four())
        stats = trainer.step(four(), published=0)
        norm = np.linalg.norm(gradient)
        assert stats.loss == pytest.approx(loss, rel=1e-4, abs=1e-6)
        assert stats.grad_norm == pytest.approx(norm, rel=1e-3)
        masters, moments = reference.adamw_step(
            masters,
            gradient * min(1.0, grad_norm_max / norm),
            moments,
            step=step,
            lr=SETTINGS.lr,
            decay=0.0,
        )
        # Where the gradient is all rounding, Adam's first step is a sign that rounding decides.
        is_clear = np.abs(gradient) > 1e-4 * np.abs(gradient).max()
        assert is_clear.mean() > 0.3
        difference = np.abs(trainer.state().masters - masters)[is_clear]
        assert np.mean(difference < 0.02 * SETTINGS.lr) > 0.99
        masters = trainer.state().masters.astype(np.float64)
        moments = tuple(
            row.astype(np.float64) for row in (trainer.state().exp_avg, trainer.state().exp_avg_sq)
        )
    assert stats.tokens == 11
    assert trainer.steps == 2


def test_what_is_served_is_what_is_learned_with() -> None:
    model = micro_model()
    start = rounded(model)
    trainer = PolicyTrainer(model, SETTINGS)
    for step in range(3):
        served = rounded(model)
        assert torch.equal(served.float(), torch.cat([p.reshape(-1) for p in model.parameters()]))
        assert np.array_equal(trainer.bits(), served.view(torch.uint16).numpy())
        assert torch.equal(served, torch.tensor(trainer.state().masters).to(torch.bfloat16))
        assert torch.equal(served, start) == (step == 0)
        trainer.step(four(), published=0)
    assert trainer.bits().dtype == np.uint16
    with pytest.raises(ValueError, match="read-only"):
        trainer.bits()[0] = 1


@pytest.mark.parametrize("is_tied", [True, False])
def test_tied_weights_come_once_and_in_the_order_of_their_names(is_tied: bool) -> None:
    model = micro_model(is_tied=is_tied)
    names = [name for name, _ in model.named_parameters()]
    trainer = PolicyTrainer(model, SETTINGS)
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == is_tied
    assert ("lm_head.weight" in names) == (not is_tied)
    trainer.step(four(), published=0)
    assert np.array_equal(trainer.bits(), rounded(model).view(torch.uint16).numpy())
    assert [name for name, _ in model.named_parameters()] == names


def test_the_ratio_is_one_for_the_weights_that_generated_the_tokens() -> None:
    """Recorded logprobs of the served weights make the loss -mean(A): nothing is off by one."""
    model = micro_model()
    trainer = PolicyTrainer(model, SETTINGS)
    told = []
    for one in four():
        logprobs = logprobs_of(model, one.tokens)
        told.append(
            replace(
                one,
                logprobs=tuple(
                    lp if said else 0.0 for lp, said in zip(logprobs, one.is_generated, strict=True)
                ),
            )
        )
    advantages = reference.advantages([one.reward for one in told], [one.group for one in told])
    mean = sum(a * one.generated_tokens for a, one in zip(advantages, told, strict=True)) / 11
    assert trainer.step(told, published=0).loss == pytest.approx(-mean, abs=1e-4)


def test_equal_rewards_change_nothing_not_even_with_momentum() -> None:
    trainer = PolicyTrainer(micro_model(), SETTINGS)
    for equal in ([replace(one, reward=0.5) for one in four()], four()[::2]):
        trainer.step(four(), published=0)
        before = [row.copy() for row in rows(trainer)]
        stats = trainer.step(equal, published=0)
        assert (stats.loss, stats.grad_norm, stats.is_changed) == (0.0, 0.0, False)
        for row, old in zip(rows(trainer), before, strict=True):
            assert np.array_equal(row, old)


def rows(trainer: PolicyTrainer):
    state = trainer.state()
    return state.masters, state.exp_avg, state.exp_avg_sq, trainer.bits()


def test_trajectories_that_are_too_stale_are_dropped_and_counted() -> None:
    settings = replace(SETTINGS, max_staleness=2)
    fresh, stale = four(version=3)[:2], four(version=2)[2:]
    trainer, other = (PolicyTrainer(micro_model(), settings) for _ in range(2))
    stats = trainer.step([*fresh, *stale], published=5)
    assert stats.staleness == (2, 2, 3, 3)
    assert stats.dropped_stale == 2
    assert stats.tokens == 5
    other.step(fresh, published=5)
    for row, same in zip(rows(trainer), rows(other), strict=True):
        assert np.array_equal(row, same)
    stats = trainer.step(stale, published=5)
    assert (stats.dropped_stale, stats.is_changed) == (2, False)
    mixed = replace(fresh[0], versions=(-1, -1, -1, -1, 5, 1, 5))  # one old token is enough
    assert trainer.step([mixed, fresh[1]], published=5).dropped_stale == 1


def test_a_step_learns_from_the_first_groups_that_differ() -> None:
    rewards = {7: 0.3, 8: 0.1 + 0.2}  # They differ by rounding.
    equals = [trajectory(n, [70, 1], reward=reward, group=9) for n, reward in rewards.items()]
    subject = PolicyTrainer(micro_model(), replace(SETTINGS, learned_max=1))
    stats = subject.step([*equals, *four()], published=0)
    assert (stats.passed_over, stats.dropped_stale, len(stats.staleness)) == (4, 0, 6)
    plain = PolicyTrainer(micro_model(), SETTINGS)
    plain.step(four()[:2], published=0)
    assert np.array_equal(subject.bits(), plain.bits())


def test_equal_calls_do_equal_things_in_any_order_of_trajectories() -> None:
    trainers = [PolicyTrainer(micro_model(), SETTINGS) for _ in range(2)]
    for trainer, step in itertools.product(trainers, range(3)):
        told = four() if trainer is trainers[0] else four()[::-1]
        trainer.step(told, published=step)
    for row, same in zip(*map(rows, trainers), strict=True):
        assert np.array_equal(row, same)


def test_multiplying_in_bf16_points_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_module, "_GRAD_NORM_MAX", 1e9)
    exact, rough = (
        PolicyTrainer(micro_model(), replace(SETTINGS, is_bf16=is_bf16))
        for is_bf16 in (False, True)
    )
    losses = [trainer.step(four(), published=0).loss for trainer in (exact, rough)]
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], abs=0.02)
    one, other = (trainer.state().exp_avg.astype(np.float64) for trainer in (exact, rough))
    assert one @ other > 0.99 * np.linalg.norm(one) * np.linalg.norm(other)


def test_a_gradient_that_is_no_number_changes_nothing() -> None:
    model = micro_model()
    trainer = PolicyTrainer(model, SETTINGS)
    trainer.step(four(), published=0)
    before = [row.copy() for row in rows(trainer)]
    handle = model.model.norm.register_full_backward_hook(
        lambda module, grad_in, grad_out: (grad_in[0] * float("nan"),)
    )
    with pytest.raises(InternalError, match="gradient of step 2"):
        trainer.step(four(), published=0)
    handle.remove()
    for row, old in zip(rows(trainer), before, strict=True):
        assert np.array_equal(row, old)
    assert trainer.step(four(), published=0).is_changed  # and nothing of it is left


def test_newer_trajectories_and_bf16_weights_are_refused() -> None:
    trainer = PolicyTrainer(micro_model(), SETTINGS)
    with pytest.raises(InternalError, match="newer than version 2, the newest"):
        trainer.step(four(version=3), published=2)
    with pytest.raises(InvalidArgument, match=r"torch\.float32"):
        PolicyTrainer(micro_model().to(torch.bfloat16), SETTINGS)
