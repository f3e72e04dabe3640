"""The trainer's own process: `python -m rose.demo.rl.program`.

It prints one line of JSON when it is ready (`rose.demo.rl.messages.Ready`) and ends when its
standard input closes or on SIGTERM, so that it never outlives its parent; it saves before it ends.
"""

import argparse
import secrets
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

import msgspec

from rose.clock import BootClock
from rose.demo.rl.checkpoint import Progress, from_ranges, load_checkpoint, save_checkpoint
from rose.demo.rl.intake import Intake
from rose.demo.rl.messages import Ready
from rose.demo.rl.parent import heed_signals, input_has_ended
from rose.demo.rl.service import TrainerServer
from rose.demo.rl.settings import TrainerPace
from rose.demo.rl.trainer import PolicyTrainer, TrainerSettings
from rose.demo.rl.training import (
    PublishedWeights,
    Training,
    waiting_max,
)
from rose.engines.transformers.models import load_model
from rose.errors import InvalidArgument, RoseError
from rose.node.cores import cores_of
from rose.node.place import take_place
from rose.thread import Thread
from rose.transfer.version import Version

_JOIN_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class _Start:
    """What this incarnation begins with."""

    trainer: PolicyTrainer
    progress: Progress
    first_version: int


def main(arguments: Sequence[str], *, open_weights: type[PublishedWeights]) -> int:
    """Run the trainer until it is told to stop; return the exit status."""
    options = _parser().parse_args(arguments)
    token = sys.stdin.readline().strip() if options.weights_token_on_stdin else None
    stop = heed_signals()
    parent = Thread(
        lambda: _until_input_ends(stop),
        name="rose-parent",
        on_failure=lambda _: stop.set(),
        daemon=False,
    )
    parent.start()
    try:
        _train(options, stop, open_weights, token)
    except RoseError as error:
        sys.stderr.write(f"the trainer ends: {error}\n")
        return 1
    finally:
        stop.set()
        parent.join(_JOIN_S)
    return 0


def _train(
    options: argparse.Namespace,
    stop: threading.Event,
    open_weights: type[PublishedWeights],
    token: str | None,
) -> None:
    take_place(options.cores, is_background=options.background)
    model = load_model(options.model, seed=options.seed)
    given = {one.name: getattr(options, one.name) for one in fields(TrainerPace)}
    pace = TrainerPace(**given)
    settings = TrainerSettings(
        lr=pace.lr,
        max_staleness=pace.max_staleness,
        temperature=options.temperature,
        learned_max=pace.learned_max,
        is_bf16=pace.is_bf16,
    )
    start = _begin(PolicyTrainer(model, settings), options)
    intake = Intake(
        group_size=options.group_size,
        vocabulary=model.config.vocab_size,
        waiting_max=waiting_max(options.batch, options.group_size),
        learned=from_ranges(start.progress.learned),
    )
    weights = open_weights(
        start.trainer.bits(),
        version=Version(options.run, start.progress.incarnation, start.first_version),
        address=options.weights_address,
        token=token,
    )
    try:
        training = Training(
            trainer=start.trainer,
            intake=intake,
            weights=weights,
            checkpoint=options.checkpoint,
            progress=start.progress,
            settings=pace,
            clock=BootClock(),
        )
        own_token = secrets.token_hex(16)
        with TrainerServer(training, token=own_token) as server:
            _say_ready(
                Ready(
                    run=options.run,
                    incarnation=start.progress.incarnation,
                    version=weights.version,
                    trainer_address=server.address,
                    trainer_token=own_token,
                    weights_address=weights.address,
                    weights_token=weights.token,
                )
            )
            training.run(stop)
    finally:
        weights.close()


def _begin(trainer: PolicyTrainer, options: argparse.Namespace) -> _Start:
    """Restore what there is, and claim this incarnation on disk before anybody hears of it."""
    incarnation, first_version, before = options.incarnation, options.first_version, None
    if (found := load_checkpoint(options.checkpoint, count=trainer.count)) is not None:
        state, before = found
        if before.run != options.run:
            raise InvalidArgument(
                f"the checkpoint '{options.checkpoint}' is of run '{before.run}', not "
                f"'{options.run}': give its run or another path"
            )
        trainer.restore(state)
        incarnation = max(incarnation, before.incarnation + 1)
        first_version = max(first_version, before.next_version)
    progress = Progress(
        run=options.run,
        incarnation=incarnation,
        next_version=first_version + 1 + options.checkpoint_every,
        learned=before.learned if before else (),
        dropped_stale=before.dropped_stale if before else 0,
    )
    save_checkpoint(options.checkpoint, trainer.state(), progress)
    return _Start(trainer, progress, first_version)


def _until_input_ends(stop: threading.Event) -> None:
    """Set `stop` when the parent is gone."""
    while not stop.is_set():
        if input_has_ended():
            stop.set()


def _say_ready(ready: Ready) -> None:
    sys.stdout.write(msgspec.json.encode(ready).decode() + "\n")
    sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="rose.demo.rl.program", description=__doc__)
    option: Callable[..., argparse.Action] = parser.add_argument
    option("--model", required=True, help="a preset, or a directory with config.json and weights")
    option("--run", required=True, help="names the training run")
    option("--checkpoint", required=True, type=Path, help="file to go on from and to save to")
    option("--seed", type=int, default=0, help="of a preset's weights")
    option("--group-size", type=int, default=4, help="trajectories with the same task")
    option("--temperature", type=float, default=1.0, help="at which tokens were sampled")
    option("--is-bf16", action="store_true", help="multiply in bf16 where fp32 is the default")
    for one in fields(TrainerPace):
        if one.name != "is_bf16":
            option(f"--{one.name.replace('_', '-')}", type=type(one.default), default=one.default)
    option("--first-version", type=int, default=0, help="lowest number of a version to use")
    option("--incarnation", type=int, default=1, help="lowest incarnation to be")
    option("--weights-address", default="127.0.0.1:0", help="where receivers of weights ask")
    option(
        "--weights-token-on-stdin",
        action="store_true",
        help="the first line of standard input is what they show, instead of a token made now",
    )
    option("--background", action="store_true", help="run in time that nobody else wants")
    option("--cores", type=cores_of, default=frozenset(), help="to run on, as in 0,1")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], open_weights=PublishedWeights))
