"""A GRPOTrainer of TRL in one of several processes: `torchrun trl_ranks.py KIND FOLDER`.

It trains the model in FOLDER through the rollout service at `ROLLOUT_URL` and publishes its weights
at `PUBLISH`. Each process writes what it generated and the weights that it has in the end.
"""

import json
import os
import sys
from contextlib import ExitStack
from pathlib import Path

import torch
from accelerate import PartialState
from datasets import Dataset
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

import rose
from rose.adapters.trl import TrlRollouts, TrlWeightTransfer, trl_weights
from rose.adapters.trl.weights import gathered

STEPS = 3


class Adder:
    """An environment with a tool, as TRL has them: it sees the row, and keeps what it was told."""

    def reset(self, start: int, **_: object) -> None:
        self._sum = start

    def add(self, number: int) -> int:
        """Add to the number of the row.

        Args:
            number: what to add.
        """
        self._sum += number
        return self._sum

    def get_reward(self) -> float:
        return float(self._sum)


class Speaker:
    """An environment without tools: it answers each turn by the letter of its row, three times."""

    def reset(self, letter: str, **_: object) -> None:
        self._letter, self.heard = letter, 0

    def __call__(self, turn: str) -> str | None:
        self.heard += 1
        return self._letter if self.heard < 3 else None

    def get_reward(self) -> float:
        return float(self.heard)


def main(kind: str, folder: Path) -> None:
    torch.set_num_threads(1)
    state = PartialState(cpu=True)
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    options = {}
    if kind == "peft":
        from peft import LoraConfig

        options["peft_config"] = LoraConfig(r=4, target_modules="all-linear")
    if kind == "tools":
        options["environment_factory"] = Adder
    elif kind == "chat":
        options["environment_factory"] = Speaker
    else:
        options["reward_funcs"] = lambda completions, **_: [float(len(one)) for one in completions]
    rows = [
        {"prompt": [{"role": "user", "content": letter * 3}], "letter": letter, "start": at}
        if kind in {"tools", "chat"}
        else {"prompt": letter * 3}
        for at, letter in enumerate("abcdefgh")
    ]
    with ExitStack() as open_here:
        publisher = None
        if state.is_main_process:
            publisher = open_here.enter_context(
                rose.publish(
                    trl_weights(model), listen=os.environ["PUBLISH"], token=os.environ["ROSE_TOKEN"]
                )
            )
        rollouts = TrlRollouts(TrlWeightTransfer(os.environ["ROLLOUT_URL"], publisher, wait_s=60))
        trainer = GRPOTrainer(
            model=model,
            args=GRPOConfig(
                output_dir=str(folder / "out"),
                use_cpu=True,
                bf16=False,
                max_steps=STEPS,
                per_device_train_batch_size=4,
                num_generations=4,
                gradient_checkpointing=False,
                max_completion_length=80,
                max_tool_calling_iterations=2,
                learning_rate=1e-2,
                report_to="none",
                save_strategy="no",
                disable_tqdm=True,
                logging_steps=1,
            ),
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
            rollout_func=None if kind == "tools" else rollouts,
            **options,
        )
        if kind == "tools":
            rollouts.attach(trainer)
        trainer.train()
        rollouts.publish(trainer)
        last = trainer.accelerator.unwrap_model(trainer.model)
        weights = gathered(last, is_kept=True)
        rank = state.process_index
        save_file(
            {name: tensor.clone().contiguous() for name, tensor in weights.items()},
            folder / f"rank{rank}.safetensors",
        )
        log = [entry for entry in trainer.state.log_history if "loss" in entry]
        (folder / f"rank{rank}.json").write_text(json.dumps(log))
        if publisher is not None:
            print("done", publisher.version, flush=True)
            sys.stdin.readline()  # the test reads the last version before the publisher closes


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
