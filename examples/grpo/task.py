"""The task: pick the right tool, call it, and repeat its answer; and a pretrained model for it.

A question names an operation by a letter, as in "3807c". The model calls a tool in its first turn
("*3807"), gets "=0266" back, and answers "!0266". Before RL it can write calls and answers, but it
calls nearly any tool, because it has hardly learned what the letters mean.
"""

import random
from collections.abc import Callable
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

PAD, END = "_", "."
TOOLS: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: abs(a - b),
    "*": lambda a, b: a * b,
    "^": max,
}
LETTERS = "abcd"
QUESTION_TOKENS, TURN_TOKENS, REPLY_TOKENS = 5, 6, 5
COMPLETION_TOKENS = 2 * TURN_TOKENS + REPLY_TOKENS + 1
REPLY = slice(QUESTION_TOKENS + TURN_TOKENS, QUESTION_TOKENS + TURN_TOKENS + REPLY_TOKENS)
PRETRAINING_STEPS, EXAMPLES, LR = 500, 32, 3e-3
# Share of the pretraining examples that call the right tool; the others call a random tool. With
# a share of 0, RL would spend most of a run on finding out which letter means which tool.
PRIOR = 0.1
IGNORED = -100  # cross-entropy skips these labels
# The prompts are no chats, but TRL accepts an environment only with a template that shows tools.
CHAT_TEMPLATE = "{{ messages }}"


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token for each character."""
    characters = [PAD, END, *"0123456789", *TOOLS, *LETTERS, *"=!"]
    tokenizer = Tokenizer(models.WordLevel({one: at for at, one in enumerate(characters)}, PAD))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=PAD, chat_template=CHAT_TEMPLATE
    )


class Questions:
    """Questions of one seed, which decides what each letter means."""

    def __init__(self, seed: int) -> None:
        tools = random.Random(seed).sample(list(TOOLS), len(LETTERS))
        self.tool_of = dict(zip(LETTERS, tools, strict=True))

    def draw(self, count: int, seed: int) -> list[dict[str, str]]:
        """Return rows of a data set: prompts, and the right last turns."""
        draw = random.Random(seed)
        return [self._row(LETTERS[at % len(LETTERS)], draw) for at in range(count)]

    def _row(self, letter: str, draw: random.Random) -> dict[str, str]:
        a, b = draw.randrange(100), draw.randrange(100)
        right = TOOLS[self.tool_of[letter]](a, b)
        return {"prompt": f"{a:02}{b:02}{letter}", "answer": f"!{right:04}"}


class Calculators:
    """The environment of a completion: it answers the model's calls, and rewards a right answer.

    TRL makes one for each completion of a step, and resets it with the columns of the row.
    """

    def reset(self, answer: str, **_: object) -> None:
        """Begin an episode."""
        self._answer, self._is_right = answer, False

    def __call__(self, turn: str) -> str | None:
        """Return the tool's answer to a call; None for any other turn, which ends the episode."""
        self._is_right = turn == self._answer
        if len(turn) != TURN_TOKENS - 1 or turn[0] not in TOOLS or not turn[1:].isdecimal():
            return None
        return f"={TOOLS[turn[0]](int(turn[1:3]), int(turn[3:])):04}"

    def get_reward(self) -> float:
        """Return 1 if the last turn was the right answer, otherwise 0."""
        return float(self._is_right)


def pretrain(folder: Path, seed: int) -> None:
    """Save a model that knows how to write a call and an answer, and its tokenizer."""
    tokenizer, draw, questions = make_tokenizer(), random.Random(seed), Questions(seed)
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=128,  # a worker measures its speed with ids up to 96
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            head_dim=32,
            initializer_range=0.1,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    adam = torch.optim.AdamW(model.parameters(), lr=LR)
    for step in range(PRETRAINING_STEPS):
        adam.param_groups[0]["lr"] = LR * min(1.0, step / 50, (PRETRAINING_STEPS - step) / 200)
        examples = [_example(draw, questions) for _ in range(EXAMPLES)]
        rows = torch.tensor(tokenizer(examples)["input_ids"])
        labels = rows.clone()
        labels[:, :QUESTION_TOKENS] = labels[:, REPLY] = IGNORED
        loss = model(input_ids=rows, labels=labels).loss
        adam.zero_grad()
        loss.backward()
        adam.step()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _example(draw: random.Random, questions: Questions) -> str:
    a, b, letter = draw.randrange(100), draw.randrange(100), draw.choice(LETTERS)
    tool = questions.tool_of[letter] if draw.random() < PRIOR else draw.choice(list(TOOLS))
    result = f"{TOOLS[tool](a, b):04}"
    numbers = f"{a:02}{b:02}"
    return f"{numbers}{letter}{tool}{numbers}{END}={result}!{result}{END}"
