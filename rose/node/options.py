"""What the program of a dedicated worker is told on its command line."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from rose.node.cores import cores_of


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """One dedicated worker.

    Args:
        model: a preset or a directory.
        seed: of a preset's weights.
        number: what events call it.
        cores: the cores it runs on; empty for all it may use.
        is_background: run in time that nobody else wants.
        seats: most sequences in a step.
        kv_tokens: how many tokens of context it can hold.
        weights: address of the publisher; None for weights that never change.
        weights_token_on_stdin: the first line of stdin is what the publisher wants to be shown; on
            the command line every user of the machine could read it.
        version: number of the weights it starts with.
    """

    model: str
    seed: int
    number: int
    cores: frozenset[int]
    is_background: bool
    seats: int
    kv_tokens: int
    weights: str | None
    weights_token_on_stdin: bool
    version: int


def read_options(arguments: Sequence[str]) -> WorkerOptions:
    """Read a command line; a wrong one ends the program with a sentence on stderr."""
    parser = argparse.ArgumentParser(prog="python -m rose.node.worker", description=__doc__)
    parser.add_argument("--model", required=True, help="a preset, or a directory with a model")
    parser.add_argument("--seed", type=int, default=0, help="of a preset's weights")
    parser.add_argument("--number", type=int, required=True, help="what events call the worker")
    parser.add_argument("--cores", type=cores_of, default=frozenset(), help="such as 0 or 0,2")
    parser.add_argument(
        "--background",
        dest="is_background",
        action="store_true",
        help="run in time that nobody else wants",
    )
    parser.add_argument("--seats", type=_above_zero, default=8, help="sequences in a step")
    parser.add_argument("--kv-tokens", type=_above_zero, required=True, help="of context")
    parser.add_argument("--weights", default=None, help="HOST:PORT of the publisher")
    parser.add_argument(
        "--weights-token-on-stdin",
        action="store_true",
        help="the first line of standard input is what the publisher wants to see",
    )
    parser.add_argument("--version", type=_count, default=0, help="of the weights it starts with")
    return WorkerOptions(**vars(parser.parse_args(arguments)))


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{value} is less than 0")
    return value


def _above_zero(text: str) -> int:
    value = int(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{value} is not above 0")
    return value
