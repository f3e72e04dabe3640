"""Messages between the trainer's process and its parent, through the trainer's stdin."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Final

import msgspec

from rose.errors import CorruptData, Unavailable
from rose_lab.demo.rl.trajectory import TRAJECTORY_TOKENS_MAX, Trajectory

# Maximum trajectories per message.
SUBMIT_MAX: Final = 64
# A token takes up to 28 bytes in a message.
MESSAGE_BYTES_MAX: Final = 32 * SUBMIT_MAX * TRAJECTORY_TOKENS_MAX


@dataclass(frozen=True, slots=True)
class Submitted:
    """Outcome of each submitted trajectory, by number.

    Args:
        accepted: queued in memory; lost if the trainer dies before its next checkpoint.
        known: duplicates, ignored.
        later: no room now; send again.
        refused: invalid for the trainer's model, with the reason; do not send again.
    """

    accepted: tuple[int, ...] = ()
    known: tuple[int, ...] = ()
    later: tuple[int, ...] = ()
    refused: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TrainerStatus:
    """Status of the trainer, in numbers.

    Args:
        version: newest published version.
        steps: changes of the weights, over all incarnations.
        staleness: number of trajectories for each age in versions, in this incarnation.
        dropped_stale: trajectories too old to learn from, over all incarnations.
        passed_over: trajectories in this incarnation that are not learned from, because a step had
            enough others or the rewards of their group were equal.
        consumed: trajectories that need not be sent again: learned, dropped or waiting.
        waiting: consumed trajectories that are not learned yet.
        durable: consumed trajectories in the last checkpoint; the others are lost if the trainer
            dies.
        versions: versions published in this incarnation.
        bytes_sent: chunk bytes sent to all receivers, in this incarnation.
        dense_bytes: bytes that would have been sent if each receiver got whole weights.
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
    """The trainer's reply: the outcome of a submission, and the status after it."""

    submitted: Submitted
    status: TrainerStatus


def submit(connection: Connection, trajectories: Sequence[Trajectory]) -> Reply:
    """Send 0 to `SUBMIT_MAX` trajectories to a trainer, and wait for its reply.

    Duplicates count once. After `Unavailable` the caller cannot know whether the trajectories
    arrived, so it sends them again to the next incarnation, which recognises duplicates by number.

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
        raise Unavailable(f"the trainer has disconnected: {error}") from error
