"""`rose verify LOG`: check every certificate of a log with the second implementation."""

from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rose.slo.verify import verify_log

EXIT_VIOLATED: Final = 1


@click.command()
@click.argument("log", type=click.Path(path_type=Path))
@click.pass_context
def verify(ctx: click.Context, log: Path) -> None:
    """Check every certificate of LOG again, independently of the code that granted it.

    The exit status is 0 when all hold, 1 when one does not, 2 when LOG cannot be read.
    """
    verification = verify_log(log)
    console = Console(highlight=False)
    table = Table("kind of record", title=f"Certificates of {escape(str(log))}")
    table.add_column("records", justify="right")
    for kind, count in sorted(verification.kinds.items()):
        table.add_row(escape(kind), str(count))
    table.add_section()
    table.add_row("all records", str(verification.records))
    table.add_row("granted", str(verification.granted))
    table.add_row("violations", str(len(verification.violations)))
    console.print(table)
    if not verification.violations:
        console.print("Every certificate holds.")
        return
    for violation in verification.violations:
        console.print(f"- {violation}", markup=False, soft_wrap=True)
    ctx.exit(EXIT_VIOLATED)
