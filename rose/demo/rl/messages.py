"""What passes between the trainer's process and its parent: dataclasses, packed, with a version."""

from dataclasses import dataclass, field
from typing import Final

from rose.demo.rl.trajectory import Trajectory

FORMAT: Final = 1

SERVICE: Final = "rose.demo.rl.Trainer"
SUBMIT: Final = "Submit"
STATUS: Final = "Status"
TOKEN_KEY: Final = "rose-token"  # of the metadata of each call

# A client cuts what it sends into messages of so many trajectories, and of so many tokens, at most:
# a token takes up to 28 bytes there.
MESSAGE_BYTES_MAX: Final = 64 << 20
SUBMIT_MAX: Final = 64
SUBMIT_TOKENS_MAX: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Submit:
    """Trajectories to learn from."""

    trajectories: tuple[Trajectory, ...]
    format: int = FORMAT


@dataclass(frozen=True, slots=True)
class Submitted:
    """What became of each trajectory, by number.

    Args:
        accepted: will be learned from; kept in memory, so lost if the trainer dies before its next
            checkpoint.
        known: sent before; nothing was done.
        later: there is no room for it now: send it again.
        refused: it is not one of the trainer's model, and why: do not send it again.
    """

    accepted: tuple[int, ...] = ()
    known: tuple[int, ...] = ()
    later: tuple[int, ...] = ()
    refused: dict[int, str] = field(default_factory=dict)
    format: int = FORMAT


@dataclass(frozen=True, slots=True)
class AskStatus:
    """Asks for the status."""

    format: int = FORMAT


@dataclass(frozen=True, slots=True)
class TrainerStatus:
    """Where the trainer is.

    Args:
        incarnation: of the trainer.
        version: the newest published.
        steps: times the weights changed, over all incarnations.
        reward_mean: of the last step's trajectories; None before the first.
        loss: of the last step; None before the first.
        staleness: how many trajectories came at which staleness, in this incarnation.
        dropped_stale: trajectories too old to learn from, over all incarnations.
        passed_over: trajectories that a step had no time for, in this incarnation.
        consumed: trajectories that need not be sent again: learned, dropped or waiting.
        waiting: of these, not learned yet.
        durable: of these, in the last checkpoint; the others are lost if the trainer dies.
        versions: published in this incarnation.
        bytes_sent: of chunks, to all receivers, in this incarnation.
        dense_bytes: what sending all weights to each of them would have been.
    """

    incarnation: int
    version: int
    steps: int
    reward_mean: float | None
    loss: float | None
    staleness: dict[int, int]
    dropped_stale: int
    passed_over: int
    consumed: int
    waiting: int
    durable: int
    versions: int
    bytes_sent: int
    dense_bytes: int
    format: int = FORMAT


@dataclass(frozen=True, slots=True)
class Ready:
    """The one line that the program prints: where it is, and what callers must show.

    Args:
        incarnation: of this process, higher than any before it.
        version: what its weights are now; receivers begin there.
        trainer_address: where trajectories go, "127.0.0.1:port".
        trainer_token: goes with every call there.
        weights_address: where receivers of weights ask.
        weights_token: goes with every call there.
    """

    run: str
    incarnation: int
    version: int
    trainer_address: str
    trainer_token: str
    weights_address: str
    weights_token: str
    format: int = FORMAT
