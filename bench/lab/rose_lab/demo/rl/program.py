"""The trainer's own process: `python -m rose_lab.demo.rl.program OPTIONS`.

When ready, it prints one line of JSON: its incarnation, its weight version, and the address for
receivers of weights. It answers its parent through its standard input, which is a socket. When the
socket closes, or on SIGTERM, it saves a checkpoint and exits. Receivers authenticate with
ROSE_TOKEN.
"""

import signal
import sys
import threading
from contextlib import closing
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec

from rose.clock import BootClock
from rose.config import read_environment
from rose.engines.transformers.models import load_model
from rose.errors import RoseError
from rose.thread import Thread
from rose.transfer.manifest import Version
from rose_lab.demo.rl.checkpoint import TrainingProgress, load_checkpoint, save_checkpoint
from rose_lab.demo.rl.intake import Intake
from rose_lab.demo.rl.messages import MESSAGE_BYTES_MAX, Reply
from rose_lab.demo.rl.settings import TrainerOptions
from rose_lab.demo.rl.trainer import PolicyTrainer
from rose_lab.demo.rl.training import PublishedWeights, Training, waiting_max
from rose_lab.demo.rl.trajectory import Trajectory


def main(argument: str) -> int:
    """Run the trainer until it is stopped; return the exit status."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stop.set())  # noqa: ARG005
    try:
        _train(msgspec.json.decode(argument, type=TrainerOptions), stop)
    except RoseError as error:
        sys.stderr.write(f"the trainer ends: {error}\n")
        return 1
    return 0


def _train(options: TrainerOptions, stop: threading.Event) -> None:
    model = load_model(options.model, seed=options.seed)
    trainer = PolicyTrainer(model, options.settings)
    progress, first_version = _begin(trainer, options)
    intake = Intake(
        group_size=options.group_size,
        vocabulary=model.config.vocab_size,
        waiting_max=waiting_max(options.settings.batch, options.group_size),
        learned=progress.learned,
    )
    weights = PublishedWeights(
        trainer.bits(),
        version=Version(options.run, progress.incarnation, first_version),
        address=options.weights_address,
        token=read_environment().token,
    )
    with closing(weights):
        training = Training(
            trainer=trainer,
            intake=intake,
            weights=weights,
            checkpoint=Path(options.checkpoint),
            progress=progress,
            settings=options.settings,
            clock=BootClock(),
        )
        # This thread is not joined: the next incarnation recognises late submissions by number.
        Thread(
            partial(_answer, training, stop), name="rose-answer", on_failure=lambda _: stop.set()
        ).start()
        ready = {
            "incarnation": progress.incarnation,
            "version": weights.version,
            "weights_address": weights.address,
        }
        sys.stdout.write(msgspec.json.encode(ready).decode() + "\n")
        sys.stdout.flush()
        training.run(stop)


def _begin(trainer: PolicyTrainer, options: TrainerOptions) -> tuple[TrainingProgress, int]:
    """Restore the checkpoint if present, and save this incarnation before it is announced.

    Returns:
        This incarnation's progress, and its first version number.
    """
    path, incarnation, first_version, before = Path(options.checkpoint), 1, 0, None
    if (found := load_checkpoint(path)) is not None:
        state, before = found
        trainer.restore(state)
        incarnation, first_version = before.incarnation + 1, before.next_version
    first_version = max(first_version, options.first_version)
    progress = TrainingProgress(
        incarnation=incarnation,
        next_version=first_version + 1 + options.settings.checkpoint_every,
        learned=before.learned if before else frozenset(),
        dropped_stale=before.dropped_stale if before else 0,
    )
    save_checkpoint(path, trainer.state(), progress)
    return progress, first_version


def _answer(training: Training, stop: threading.Event) -> None:
    """Answer the parent until it disconnects, then stop the trainer."""
    parent = Connection(sys.stdin.fileno())
    try:
        while True:
            sent = parent.recv_bytes(MESSAGE_BYTES_MAX)
            submitted = training.submit(msgspec.msgpack.decode(sent, type=list[Trajectory]))
            parent.send_bytes(msgspec.msgpack.encode(Reply(submitted, training.status())))
    except (EOFError, OSError):
        stop.set()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
