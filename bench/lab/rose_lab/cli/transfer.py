"""`rose transfer`: plans the traffic of updates, and merges the timelines of several processes."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from rich.console import Console

from rose.cli.ranges import FiniteRange
from rose.cli.runs import read_named, write_output
from rose.errors import InvalidArgument
from rose.transfer.plan import (
    Coverage,
    RelayNode,
    Replica,
    SourceRanks,
    check_coverage,
    make_plan,
)
from rose.transfer.plan.coverage import renamed
from rose.transfer.tiles import TILE_ELEMENTS
from rose_lab.cli.timeline import FILE_BYTES_MAX, merged
from rose_lab.cli.transfer_plan import Planned, print_planned
from rose_lab.sim.plan_traffic import traffic

if TYPE_CHECKING:
    from rose.transfer.plan.files import ShardFile

_PATH: Final = click.Path(path_type=Path)
# Cluster names for files that do not name their cluster.
_TRAINING: Final = "training"
_SERVING: Final = "serving"


@click.group()
def transfer() -> None:
    """Plan the traffic of weight updates, or merge the timelines of several programs."""


@transfer.command()
@click.argument("source", type=_PATH)
@click.argument("destinations", type=_PATH, nargs=-1, required=True, metavar="DEST...")
@click.option(
    "--relays",
    type=click.IntRange(0, 1024),
    default=1,
    help="Relays per serving cluster; with 0, each tile crosses the link once per receiver.",
)
@click.option(
    "--density",
    type=FiniteRange(0, 1),
    default=0.01,
    help="Share of the elements that an update changes.",
)
@click.option(
    "--bytes-per-change",
    type=FiniteRange(0, 64),
    default=1.5,
    help="Bytes per changed element on the wire; a tile never takes more than its full size.",
)
@click.option(
    "--tile-elements",
    type=click.IntRange(1, TILE_ELEMENTS),
    default=TILE_ELEMENTS,
    help="Most elements of a tile.",
)
@click.option("--plan", "plan_out", type=_PATH, metavar="FILE", help="Also write the plan.")
def plan(
    *,
    source: Path,
    destinations: tuple[Path, ...],
    relays: int,
    density: float,
    bytes_per_change: float,
    tile_elements: int,
    plan_out: Path | None,
) -> None:
    """Report how updates get from SOURCE to every DEST: tiles, bytes on links, coverage.

    SOURCE is the shard map of a trainer, and each DEST is the shard map of an engine's replica, as
    JSON. The exit status is 2 when a file cannot be read, when a part of the source or of a
    parameter is not covered, or when a replica needs elements that the source does not have.
    """
    giving, taking = _read(source), [_read(path) for path in destinations]
    members = _members(destinations, taking)
    given = _covered(source, giving, is_source=True)
    held = {
        member.name: _covered(path, file)
        for path, file, member in zip(destinations, taking, members, strict=True)
    }
    made = make_plan(
        SourceRanks(giving.cluster or _TRAINING, giving.shards, giving.ties),
        members,
        _relays(members, relays),
        tile_elements=tile_elements,
    )
    bytes_of_tile = [
        min(tile.nbytes, math.ceil(tile.count * density * bytes_per_change)) for tile in made.tiles
    ]
    moved = traffic(made, bytes_of_tile)
    planned = Planned(made, moved, given, held, density, bytes_per_change)
    if plan_out is not None:
        from rose.transfer.plan.files import plan_to_json  # noqa: PLC0415 (see `_read`)

        write_output(plan_out, plan_to_json(made), what="the plan")
    print_planned(Console(highlight=False), planned)


def _read(path: Path) -> "ShardFile":
    # Imported here, because it needs the extra `wire`.
    from rose.transfer.plan.files import FILE_BYTES_MAX, shards_from_json  # noqa: PLC0415

    return shards_from_json(read_named(path, FILE_BYTES_MAX), what=str(path))


def _members(paths: tuple[Path, ...], files: list["ShardFile"]) -> tuple[Replica, ...]:
    return tuple(
        Replica(file.name or path.stem, file.cluster or _SERVING, file.shards, file.converts)
        for path, file in zip(paths, files, strict=True)
    )


def _relays(members: tuple[Replica, ...], count: int) -> list[RelayNode]:
    clusters = sorted({member.cluster for member in members})
    return [RelayNode(f"{one} relay {place}", one) for one in clusters for place in range(count)]


def _covered(path: Path, file: "ShardFile", *, is_source: bool = False) -> Coverage:
    try:
        return check_coverage(
            renamed(file.shards, file.ties),
            is_source=is_source,
            storages=file.sizes,
            buffers=file.buffers,
        )
    except InvalidArgument as error:
        raise InvalidArgument(f"{path}: {error}") from None


@transfer.command()
@click.argument("files", type=_PATH, nargs=-1, required=True, metavar="FILE...")
@click.option("-o", "--out", type=_PATH, required=True, metavar="OUT", help="Output file.")
def timeline(files: tuple[Path, ...], out: Path) -> None:
    """Merge the files that several programs of one machine wrote with `--timeline`."""
    content = merged([(str(path), read_named(path, FILE_BYTES_MAX)) for path in files])
    write_output(out, content, what="the timeline")
    click.echo(f"{out}: {len(files)} processes; open it in ui.perfetto.dev or chrome://tracing")
