"""`rose transfer timeline A.json B.json -o OUT`: what several processes did, side by side."""

from pathlib import Path
from typing import Final

import click

from rose.cli.outputs import write_output
from rose.errors import InvalidArgument
from rose.transfer.observing.timeline import FILE_BYTES_MAX, merged
from rose.whole_file import open_input

_PATH: Final = click.Path(path_type=Path)


@click.command()
@click.argument("files", type=_PATH, nargs=-1, required=True, metavar="FILE...")
@click.option("-o", "--out", type=_PATH, required=True, metavar="OUT", help="Where to write it.")
def timeline(files: tuple[Path, ...], out: Path) -> None:
    """Lay traces that `--timeline` of programs of one machine wrote side by side, for Perfetto."""
    content = merged([(str(path), _content(path)) for path in files])
    write_output(out, content, what="the timeline")
    click.echo(f"{out}: {len(files)} processes; open it in ui.perfetto.dev or chrome://tracing")


def _content(path: Path) -> bytes:
    try:
        with open_input(path) as file:
            return file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidArgument(f"cannot read {path}: {error.strerror or error}") from error
