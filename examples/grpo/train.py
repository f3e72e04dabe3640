"""GRPO with TRL's GRPOTrainer, unpatched: `python examples/grpo/train.py --seed 0`.

Pretrains a model, trains a copy of it in each arm, and prints a line of JSON when an arm has ended.
It needs the packages of requirements/learn.txt (`make learn-env`).
"""

import argparse
import json
import statistics
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import torch
from chaos import Chaos
from checked import Checked
from datasets import Dataset
from fleet import Fleet
from task import COMPLETION_TOKENS, Calculators, Questions, make_tokenizer, pretrain
from transformers import AutoModelForCausalLM, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

import rose
from rose.adapters.trl import TrlRollouts, TrlWeightTransfer, trl_weights

ARMS: Final = ("dedicated", "borrowed", "chaos")
STEPS, EVAL_EVERY, EVAL_EPISODES = 30, 5, 64


class Curve(TrainerCallback):
    """Held-out rewards, and the seconds from the start of training to each."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self.rewards: list[float] = []
        self.seconds: list[float] = []

    def on_log(self, *_: object, logs: dict[str, float], **__: object) -> None:
        """Record the reward of an evaluation."""
        if "eval_reward" in logs:
            self.rewards.append(logs["eval_reward"])
            self.seconds.append(time.monotonic() - self._began_s)


def train(seed: int, arm: str, folder: Path, *, steps: int = STEPS) -> dict[str, Any]:
    """Train the model in `folder` through a fleet of rollout workers, and return the record."""
    began_s = time.monotonic()
    model, questions = AutoModelForCausalLM.from_pretrained(folder), Questions(seed)
    with (
        rose.publish(trl_weights(model)) as publisher,
        Fleet(
            folder,
            publisher,
            is_lending=arm != "dedicated",
            seed=seed,
        ) as fleet,
        ExitStack() as disturbed,
    ):
        transfer = TrlWeightTransfer(fleet.url, publisher)
        rollouts = Checked(TrlRollouts(transfer, seed=seed))
        trainer = GRPOTrainer(
            model=model,
            args=options(folder, seed, steps),
            train_dataset=Dataset.from_list(questions.draw(1024, seed=2 * seed)),
            eval_dataset=Dataset.from_list(questions.draw(EVAL_EPISODES, seed=2 * seed + 1)),
            processing_class=make_tokenizer(),
            environment_factory=Calculators,
            rollout_func=rollouts,
        )
        faults: Counter[str] = Counter()
        if arm == "chaos":
            faults = disturbed.enter_context(Chaos(fleet, seed)).faults
        curve = Curve()
        trainer.add_callback(curve)
        trainer.train()
        tokens = dict(fleet.tokens)
    return {
        "seed": seed,
        "arm": arm,
        "steps": steps,
        "curve": curve.rewards,
        "curve_s": curve.seconds,
        "seconds": time.monotonic() - began_s,
        "held_out_episodes": EVAL_EPISODES * len(curve.rewards),
        "episodes": rollouts.episodes,
        "tokens": rollouts.tokens,
        "tokens_lost": rollouts.lost,
        "tokens_by_kind": tokens,
        "kl": statistics.fmean(rollouts.kl),
        "ratio": statistics.fmean(rollouts.ratio),
        "staleness_max": max(rollouts.staleness),
        "resumed": fleet.service.resumed_count(),
        "faults": dict(faults),
        "served": fleet.served,
    }


def options(folder: Path, seed: int, steps: int) -> GRPOConfig:
    """Return TRL's options: eight questions a step, eight completions each."""
    return GRPOConfig(
        output_dir=str(folder / "trainer"),
        seed=seed,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        max_steps=steps,
        shuffle_dataset=False,  # so that each step has every letter twice
        per_device_train_batch_size=64,
        num_generations=8,
        max_completion_length=COMPLETION_TOKENS,
        learning_rate=1e-3,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=4,  # full first steps of Adam would destroy the pretrained syntax
        adam_beta2=0.99,
        max_grad_norm=0.2,
        eval_strategy="steps",
        eval_on_start=True,
        eval_steps=EVAL_EVERY,
        per_device_eval_batch_size=64,
        num_generations_eval=1,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def main(arguments: list[str]) -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--arms", choices=ARMS, nargs="+", default=ARMS)
    parser.add_argument("--steps", type=int, default=STEPS)
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:
        pretrain(Path(folder), chosen.seed)
        for arm in chosen.arms:
            record = train(chosen.seed, arm, Path(folder), steps=chosen.steps)
            print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
