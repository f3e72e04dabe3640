"""The program of a borrower in a process of its own: `python -m rose.node.borrower`.

It attaches to a device that another process serves on, and rolls out generations of a fixed length
whenever it is told to. Its first line of stdin is its settings; when it is ready it says so in one
line on stdout. Then `{"run": true}` lets rollouts run, `{"run": false}` pauses them, and any line
is answered on stderr. It ends when its stdin closes, so it never outlives whoever started it.
"""

import json
import logging
import os
import sys
from contextlib import ExitStack

import msgspec

from rose.engines.torch import run_on_cores
from rose.engines.transformers import EngineConfig, kv_geometry, load_model, rollout_engine
from rose.errors import InvalidArgument, RoseError
from rose.executor import CoServing
from rose.node.ending import Ending
from rose.rl.borrower_settings import BorrowerSettings
from rose.rl.feeder import RolloutFeeder

_LOG = logging.getLogger("rose.node")


class Borrower:
    """An engine that borrows, and its load. `close` stops it and gives everything back."""

    def __init__(self, settings: BorrowerSettings) -> None:
        """Attach and build; rollouts are paused.

        Raises:
            InvalidArgument: a model or a geometry that the device does not take.
            Unavailable: no device listens there, or it lends to somebody else.
        """
        cores = frozenset(settings.cores)
        if cores:
            run_on_cores(len(cores))
            os.sched_setaffinity(0, cores)
        model = load_model(settings.model, seed=settings.seed)
        config = EngineConfig(
            cores=cores or None,
            prefix_cache=True,
            max_batch_tokens=settings.max_batch_tokens,
            spare_share=settings.spare_share,
        )
        with ExitStack() as parts:
            device = parts.enter_context(CoServing.attach(settings.socket))
            lane = device.rollout(kv_geometry(model, config), limit_bytes=settings.limit_bytes)
            engine = rollout_engine(
                model, lane, config, layers_per_segment=settings.layers_per_segment
            )
            self._load = RolloutFeeder(
                engine,
                concurrency=settings.rollouts,
                prompt_tokens=settings.prompt_tokens,
                output_tokens=settings.output_tokens,
                vocabulary=model.config.vocab_size,
                seed=settings.seed,
            )
            parts.callback(engine.stop)
            parts.callback(self._load.stop)
            self._load.start()
            self._device = device
            self._parts = parts.pop_all()

    def told(self, line: str) -> dict[str, object]:
        """Do what a line says, and answer it; a line that says nothing else is a question.

        Raises:
            InvalidArgument: the line makes no sense.
        """
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        match message:
            case {"run": True}:
                self._load.resume()
            case {"run": False}:
                self._load.pause()
            case {}:
                pass
            case _:
                raise InvalidArgument(f"no borrower understands '{line[:80]}'")
        failures = [*self._load.failures]
        if self._device.gave_back is not None:
            failures.append(self._device.gave_back)
        return {"tokens": self._load.tokens, "failures": failures}

    def close(self) -> None:
        """Stop the engine, then give everything back."""
        self._parts.close()


def main() -> int:
    """Borrow until told to end; return the exit status."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    try:
        settings = msgspec.json.decode(sys.stdin.readline(), type=BorrowerSettings)
        borrower = Borrower(settings)
    except (RoseError, msgspec.MsgspecError) as error:
        sys.stderr.write(f"rose.node.borrower: {error}\n")
        return 1
    try:
        with Ending(sys.stdin.fileno()) as ending:
            sys.stdout.write(json.dumps({"pid": os.getpid()}) + "\n")
            sys.stdout.flush()
            _LOG.info("ending: %s", ending.wait(lambda line: _answer(borrower, line)))
    finally:
        borrower.close()
    return 0


def _answer(borrower: Borrower, line: str) -> None:
    try:
        answer = borrower.told(line)
    except InvalidArgument as error:
        _LOG.warning("stdin: %s", error)
        return
    sys.stderr.write(json.dumps(answer) + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
