"""Serve one worker to a scheduler until stdin closes."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """Options of one worker.

    Args:
        model: preset name or model directory.
        seed: random seed of a preset's weights.
        number: id of the worker in events.
        seats: maximum sequences in a step.
        kv_tokens: capacity of the KV cache in tokens; for a borrowed worker, the maximum on loan.
        attach: socket of the device that lends memory and time; None for a dedicated worker.
        weights: HOST:PORT of the publisher; None if the weights never change.
        version: number of the initial weights.
    """

    model: str
    seed: int
    number: int
    seats: int
    kv_tokens: int
    attach: Path | None
    weights: str | None
    version: int


def read_options(arguments: Sequence[str]) -> WorkerOptions:
    """Parse a command line; an invalid one ends the program with an error on stderr."""
    parser = argparse.ArgumentParser(prog="python -m rose.node.worker", description=__doc__)
    parser.add_argument("--model", required=True, help="a preset, or a directory with a model")
    parser.add_argument("--seed", type=int, default=0, help="random seed of a preset's weights")
    parser.add_argument("--number", type=int, required=True, help="id of the worker in events")
    parser.add_argument("--seats", type=_above_zero, default=8, help="most sequences in a step")
    parser.add_argument(
        "--kv-tokens", type=_above_zero, required=True, help="capacity of the KV cache, in tokens"
    )
    parser.add_argument("--attach", type=Path, help="socket of a device that lends")
    parser.add_argument("--weights", default=None, help="HOST:PORT of the publisher")
    parser.add_argument(
        "--version", type=_count, default=0, help="version number of the initial weights"
    )
    return WorkerOptions(**vars(parser.parse_args(arguments)))


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"must be at least 0, got {value}")
    return value


def _above_zero(text: str) -> int:
    value = int(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"must be above 0, got {value}")
    return value
