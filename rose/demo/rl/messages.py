"""What passes between the trainer's process and its parent, through the former's stdin."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Final

import msgspec

from rose.demo.rl.trajectory import TRAJECTORY_TOKENS_MAX, Trajectory
from rose.errors import CorruptData, Unavailable

# Trajectories of a message at most.
SUBMIT_MAX: Final = 64
# A token takes up to 28 bytes in a message.
MESSAGE_BYTES_MAX: Final = 32 * SUBMIT_MAX * TRAJECTORY_TOKENS_MAX


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


@dataclass(frozen=True, slots=True)
class TrainerStatus:
    """Where the trainer is.

    Args:
        version: the newest published.
        steps: times the weights changed, over all incarnations.
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

    version: int = 0
    steps: int = 0
    staleness: dict[int, int] = field(default_factory=dict)
    dropped_stale: int = 0
    passed_over: int = 0
    consumed: int = 0
    waiting: int = 0
    durable: int = 0
    versions: int = 0
    bytes_sent: int = 0
    dense_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Reply:
    """What the trainer answers: what became of what was sent, and where it is after that."""

    submitted: Submitted
    status: TrainerStatus


def submit(connection: Connection, trajectories: Sequence[Trajectory]) -> Reply:
    """Send at most `SUBMIT_MAX` trajectories to a trainer, or none, and wait for its reply.

    One that was sent before counts once. After `Unavailable` the caller does not know whether they
    arrived: it sends them to the next incarnation, which knows by number what it has.

    Raises:
        CorruptData: the reply cannot be read.
        Unavailable: the trainer is gone.
    """
    try:
        connection.send_bytes(msgspec.msgpack.encode(list(trajectories)))
        return msgspec.msgpack.decode(connection.recv_bytes(MESSAGE_BYTES_MAX), type=Reply)
    except msgspec.DecodeError as error:
        raise CorruptData(f"the trainer's reply cannot be read: {error}") from error
    except (EOFError, OSError) as error:
        raise Unavailable(f"the trainer is gone: {error}") from error
