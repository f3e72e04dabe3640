"""The program of a worker: `python -m rose.node.worker --help`.

With `--attach SOCKET` the worker is borrowed: it runs on the device of the serving engine that
listens at SOCKET.

The program ends when its stdin closes, so it never outlives its parent process. ROSE_TOKEN is the
token for the publisher of the worker's weights.
"""

import logging
import sys
from pathlib import Path
from typing import Any

import click

from rose.clock import BootClock
from rose.config import read_environment
from rose.errors import RoseError
from rose.node.assembly import WorkerOptions, assemble
from rose.node.program import serve_until_stopped


@click.command()
@click.option("--model", required=True, help="A preset, or a directory with a model.")
@click.option("--seed", default=0, help="Random seed of a preset's weights.")
@click.option("--number", type=int, required=True, help="Id of the worker in events.")
@click.option("--seats", type=click.IntRange(1), default=8, help="Most sequences in a step.")
@click.option("--kv-tokens", type=click.IntRange(1), required=True, help="Capacity in KV tokens.")
@click.option("--attach", type=click.Path(path_type=Path), help="Socket of a device that lends.")
@click.option("--weights", metavar="HOST:PORT", help="Address of the publisher.")
@click.option("--version", type=click.IntRange(0), default=0, help="Number of the initial weights.")
def main(**options: Any) -> None:
    """Serve one worker to a scheduler until stdin closes."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    chosen, token = WorkerOptions(**options), read_environment().token or ""
    try:
        is_stopped = serve_until_stopped(
            lambda on_event: assemble(chosen, on_event, weights_token=token, clock=BootClock()),
            stdin=sys.stdin,
            stdout=sys.stdout,
        )
    except RoseError as error:
        sys.stderr.write(f"rose.node.worker: {error}\n")
        sys.exit(1)
    sys.exit(0 if is_stopped else 1)


if __name__ == "__main__":
    main()
