"""The model's tasks: copy, reverse, sort and add, and a language of few words."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rose_lab.demo.environments import Tokenizer
from rose_lab.demo.environments.text import EOS, PAD

LENGTHS = (3, 4, 5, 6)
_LETTERS = "abcdefghij"
_DIGITS = "0123456789"
_TOKENIZER = Tokenizer()
_WORDS = 512
_NEXT_WORDS = 8  # number of possible successors of a word
_ZIPF = 1.2


@dataclass(frozen=True, slots=True)
class Task:
    """A question of `length` + 3 tokens, and the right answer."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]


def _drawn(random: np.random.Generator, symbols: str, count: int) -> str:
    return "".join(symbols[one] for one in random.integers(len(symbols), size=count))


def _copy(random: np.random.Generator, length: int) -> tuple[str, str]:
    text = _drawn(random, _LETTERS, length)
    return f"={text}", text


def _reverse(random: np.random.Generator, length: int) -> tuple[str, str]:
    text = _drawn(random, _LETTERS, length)
    return f"<{text}", text[::-1]


def _sort(random: np.random.Generator, length: int) -> tuple[str, str]:
    text = _drawn(random, _LETTERS, length)
    return f"^{text}", "".join(sorted(text))


def _add(random: np.random.Generator, length: int) -> tuple[str, str]:
    digits = _drawn(random, _DIGITS, length)
    cut = int(random.integers(1, length))
    left, right = digits[:cut], digits[cut:]
    # Other tasks begin with their sign; here it is between the operands, so lengths stay equal.
    return f"{left}+{right}", str(int(left) + int(right))


_KINDS: tuple[Callable[[np.random.Generator, int], tuple[str, str]], ...] = (
    _copy,
    _reverse,
    _sort,
    _add,
)


def draw_task(random: np.random.Generator, length: int) -> Task:
    """Return a task of some kind; tasks of one length have prompts of one length."""
    question, answer = _KINDS[int(random.integers(len(_KINDS)))](random, length)
    return Task(_TOKENIZER.prompt(question), (*_TOKENIZER.encode(answer), EOS))


def draw_examples(random: np.random.Generator, count: int) -> list[tuple[int, ...]]:
    """Return tasks with their answers, padded at the end to one length."""
    length = int(random.choice(LENGTHS))
    rows = [task.prompt + task.answer for task in (draw_task(random, length) for _ in range(count))]
    width = max(map(len, rows))
    return [row + (PAD,) * (width - len(row)) for row in rows]


class Language:
    """Words with frequencies by Zipf's law, each followed by one of a few."""

    def __init__(self, random: np.random.Generator) -> None:
        self._words = [_drawn(random, _LETTERS, int(random.integers(1, 6))) for _ in range(_WORDS)]
        share = np.arange(1, _WORDS + 1, dtype=np.float64) ** -_ZIPF
        share /= share.sum()
        self._next = random.choice(_WORDS, size=(_WORDS, _NEXT_WORDS), p=share)

    def draw(self, random: np.random.Generator, count: int, width: int) -> list[tuple[int, ...]]:
        """Return `count` pieces of text of `width` tokens."""
        return [self._stretch(random, width) for _ in range(count)]

    def _stretch(self, random: np.random.Generator, width: int) -> tuple[int, ...]:
        word, text = int(random.integers(_WORDS)), ""
        while len(text) < width:
            text += self._words[word] + " "
            word = int(self._next[word, int(random.integers(_NEXT_WORDS))])
        return _TOKENIZER.encode(text[:width])
