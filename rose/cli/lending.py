"""`rose lending on|off|limit SHARE`: lets an operator limit what a device lends."""

import click

from rose.cli.ranges import FiniteRange
from rose.cli.sockets import socket_option
from rose.executor.messages import SetLimit
from rose.executor.observing import ask_device
from rose.units import MIB

_PATIENCE_S = 5.0


@click.group()
def lending() -> None:
    """Set how much a device may lend, from now on and after restarts.

    The device takes back loans above the limit within its revocation deadline.
    """


@lending.command()
@socket_option
def on(socket_path: str) -> None:
    """Lend all that serving does not need."""
    _limit(socket_path, 1.0)


@lending.command()
@socket_option
def off(socket_path: str) -> None:
    """Lend nothing."""
    _limit(socket_path, 0.0)


@lending.command()
@click.argument("share", type=FiniteRange(min=0, max=1))
@socket_option
def limit(share: float, socket_path: str) -> None:
    """Lend at most SHARE of the pool, from 0 to 1."""
    _limit(socket_path, share)


def _limit(socket_path: str, share: float) -> None:
    ledger, answer = ask_device(socket_path, SetLimit(share), timeout_s=_PATIENCE_S)
    pool_bytes = len(ledger.records()) * ledger.slab_bytes
    most = pool_bytes if answer.cap is None else answer.cap[0]
    click.echo(f"process {answer.pid} lends at most {most / MIB:g} of {pool_bytes / MIB:g} MiB")
