"""Tables of `rose transfer plan`, with remarks."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rose.transfer.plan import Coverage, Plan
from rose.units import ceil_div
from rose_lab.cli.delta_report import density
from rose_lab.numbers import size_text
from rose_lab.sim.plan_traffic import Traffic


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan with its traffic and coverage.

    Args:
        traffic: traffic of one update.
        source: coverage of the source's shard map.
        replicas: coverage of each replica's shard map, by name.
        density: share of the elements that the update changes.
        bytes_per_change: bytes on the wire per changed element.
    """

    plan: Plan
    traffic: Traffic
    source: Coverage
    replicas: Mapping[str, Coverage]
    density: float
    bytes_per_change: float

    @property
    def elements(self) -> int:
        """Number of elements to send, each counted once."""
        return sum(tile.count for tile in self.plan.tiles)

    @property
    def tiles_min(self) -> int:
        """Number of full tiles that would hold all elements."""
        return ceil_div(self.elements, self.plan.tile_elements)

    def received(self, replica: str) -> int:
        """Return how many elements at least one rank of a replica receives."""
        return sum(
            tile.count
            for tile in self.plan.tiles
            if any(holder.replica == replica for holder in tile.receivers)
        )

    def unreceived(self, replica: str) -> list[str]:
        """Return the tensors that a replica does not receive completely."""
        missing = (
            tile.tensor
            for tile in self.plan.tiles
            if all(holder.replica != replica for holder in tile.receivers)
        )
        return list(dict.fromkeys(missing))


_NAMED: Final = 3  # names listed before "and n more"


def print_planned(console: Console, planned: Planned) -> None:
    """Print the tables and the remarks."""
    _print(console, ("what", "how much", "why"), list(_rows(planned)))
    headers = ("who", "ranks", "of the source", "of its memory", "computed")
    _print(console, headers, list(_coverages(planned)))
    for sentence in _sentences(planned):
        console.print(sentence, markup=False, soft_wrap=True)


def _sentences(planned: Planned) -> Iterator[str]:
    """Yield remarks on ties, computed tensors, uncovered elements, and missing tensors."""
    yield from _about("the source", planned.source)
    for name, coverage in planned.replicas.items():
        yield from _about(f"replica {name}", coverage)
        if coverage.storage is None:
            yield (
                f"The shard map of replica {name} gives no sizes of parameters, so nothing shows "
                f"that all of their elements are covered."
            )
        if missing := planned.unreceived(name):
            yield f"Replica {name} does not receive all elements of {_listed(missing)}."


def _rows(planned: Planned) -> Iterator[Sequence[str]]:
    plan, moved = planned.plan, planned.traffic
    why = "Elements to send; tied tensors count once, computed tensors do not count."
    yield "elements", f"{planned.elements:,}", why
    yield (
        "tiles",
        f"{len(plan.tiles):,}",
        f"At most {plan.tile_elements:,} elements each; {planned.tiles_min:,} full tiles would do.",
    )
    update = (
        f"At a density of {planned.density:.3g} and {planned.bytes_per_change:g} bytes per change"
    )
    for (one, other), nbytes in sorted(moved.crossing.items()):
        is_relayed = any(relay.cluster == other for relay in plan.relays)
        how = "crosses once" if is_relayed else "crosses once for each of its receivers"
        yield f"link {one} to {other}", size_text(nbytes), f"{update}, each tile {how}."
    for cluster, nbytes in sorted(moved.fan_out.items()):
        why = "Each tile is sent once to each of its receivers."
        yield f"inside {cluster}", size_text(nbytes), why
    yield "layout", plan.layout_id[:16], "Plans with the same layout have comparable tile digests."
    yield "plan", plan.plan_id[:16], "Identifies the layout and the routes of its tiles."


def _coverages(planned: Planned) -> Iterator[Sequence[str]]:
    source = planned.source
    held = density(source.held, source.elements)
    yield "source", *_members(source, held)
    for name, coverage in planned.replicas.items():
        received = density(planned.received(name), planned.elements)
        yield f"replica {name}", *_members(coverage, received)


def _members(coverage: Coverage, share: str) -> Sequence[str]:
    memory = "unknown"
    if coverage.storage is not None:
        memory = density(coverage.storage - sum(coverage.uncovered.values()), coverage.storage)
    ranks = f"{len(coverage.shards.ranks):,}"
    return ranks, share, memory, f"{len(coverage.shards.computed):,}"


def _about(who: str, coverage: Coverage) -> Iterator[str]:
    ties = [f"{name} = {goes_by}" for name, goes_by in coverage.ties.items()]
    if ties:
        yield f"Tied at {who}, and sent under one name: {_listed(ties)}."
    computed = [f"{name} ({reason})" for name, reason in coverage.shards.computed.items()]
    if computed:
        yield f"Computed at {who}, and changed by its loader only: {_listed(computed)}."
    uncovered = [
        f"{count:,} elements of {parameter} on rank {rank}"
        for (rank, parameter), count in coverage.uncovered.items()
    ]
    if uncovered:
        yield f"Not covered at {who} (fine for buffers and computed tensors): {_listed(uncovered)}."


def _listed(names: Collection[str]) -> str:
    shown = ", ".join(list(names)[:_NAMED])
    return f"{shown} and {len(names) - _NAMED:,} more" if len(names) > _NAMED else shown


def _print(console: Console, headers: Sequence[str], rows: list[Sequence[str]]) -> None:
    table = Table(*headers)
    for column in table.columns[1:]:
        column.justify = "left" if column.header == "why" else "right"
    for row in rows:
        table.add_row(*(Text(cell, no_wrap=column == 1) for column, cell in enumerate(row)))
    console.print(table)
