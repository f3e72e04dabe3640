"""`rose transfer`: fresh weights from a trainer to those who serve."""

import click

from rose.cli.transfer_plan import plan
from rose.cli.transfer_timeline import timeline


@click.group()
def transfer() -> None:
    """Move fresh weights from a trainer to those who serve."""


transfer.add_command(plan)
transfer.add_command(timeline)
