"""`rose top SOCKET`: partitions, loans and pins of a device, live, read from its ledger."""

import json
import math
import os
import select
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Final

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rose._core import LedgerView, SlabState
from rose.clock import BootClock, Clock
from rose.errors import CorruptData, RoseError, Unavailable
from rose.executor.channel import Channel, close_all
from rose.executor.messages import AskLedger, Ledger, Rejected
from rose.units import GIB, MIB, MS_PER_S, NS_PER_MS

_PATIENCE_S: Final = 5.0
_AGAIN_S: Final = 0.25  # A device that hangs is still to be looked at.
_STRIP_CELLS: Final = 96
_COLUMNS: Final = (
    *("slabs", "GiB", "may have", "lent", "leaving", "late", "due ms"),
    *("pins", "oldest ms"),
)
# How a slab shows in the strip: by state, in the order in which a cell of several is named.
_MARKS: Final = {
    SlabState.QUARANTINED: ("!", "bold red"),
    SlabState.REVOKING: ("<", "yellow"),
    SlabState.GRANTED: ("r", "magenta"),
    SlabState.OWNED: ("S", "green"),
    SlabState.UNOWNED: (".", "dim"),
}


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """One partition at one moment. Slabs, but for `leases`, `pins` and blocks.

    `oldest_pin_ms` is the age of the oldest pin, `deadline_ms` the time that is left until the
    earliest deadline of the revocations under way; None where there is none.
    """

    name: str
    held: int
    reserve: int
    limit: int
    lent: int
    revoking: int
    late: int
    leases: int
    blocks_used: int
    blocks_free: int
    pins: int
    oldest_pin_ms: float | None
    deadline_ms: float | None


@dataclass(frozen=True, slots=True)
class Moment:
    """A device at one moment.

    Args:
        pid: of serving's process.
        epoch: changes of ownership so far.
        age_ms: since the last one.
        slab_bytes: of each slab.
        free: slabs that nobody has.
        partitions: serving first.
        strip: one mark for each slab, in order.
        cap_bytes: the most that may be on loan now, 0 when a cap ran out; None without a cap.
        cap_left_ms: for how long that holds, 0 when it ran out; None for ever, or without a cap.
        refusals: quanta refused so far, by reason.
        binding: what the newest refused certificate failed on, as a sentence.
    """

    pid: int
    epoch: int
    age_ms: float
    slab_bytes: int
    free: int
    partitions: tuple[PartitionRow, ...]
    strip: str
    cap_bytes: int | None = None
    cap_left_ms: float | None = None
    refusals: dict[str, int] = field(default_factory=dict)
    binding: str | None = None


def read_moment(ledger: LedgerView, said: Ledger, *, clock: Clock) -> Moment:
    """Read what the ledger shows.

    Args:
        ledger: of the device.
        said: what the ledger has not, as the device just said it.
        clock: of the device.

    Raises:
        CorruptData: its records contradict each other.
        Unavailable: its writer stopped in the middle of a change.
    """
    ledger.audit()
    records, now_ns = ledger.records(), clock.now_ns()
    states = Counter((record.owner, record.state) for record in records)
    rows = [
        PartitionRow(
            name=one.name,
            held=one.held,
            reserve=one.reserve_slabs,
            limit=one.limit_slabs,
            lent=states[one.id, SlabState.GRANTED],
            revoking=states[one.id, SlabState.REVOKING],
            late=one.quarantined,
            leases=one.leases,
            blocks_used=one.used_blocks,
            blocks_free=one.free_blocks,
            pins=one.pins,
            oldest_pin_ms=(now_ns - one.oldest_pin_ns) / NS_PER_MS if one.pins else None,
            deadline_ms=(one.revocation.due_ns - now_ns) / NS_PER_MS
            if one.revocation is not None and one.revocation.due_ns
            else None,
        )
        for one in ledger.partitions()
        if one.is_live or one.quarantined
    ]
    cap = said.cap
    return Moment(
        pid=said.pid,
        epoch=ledger.epoch(),
        age_ms=(now_ns - ledger.changed_ns()) / NS_PER_MS,
        slab_bytes=ledger.slab_bytes,
        free=sum(record.state == SlabState.UNOWNED for record in records),
        partitions=tuple(rows),
        strip="".join(_MARKS[record.state][0] for record in records),
        cap_bytes=None if cap is None else cap[0],
        cap_left_ms=None if cap is None or math.isinf(cap[1]) else cap[1],
        refusals=said.refusals,
        binding=said.binding,
    )


def _strip(marks: str) -> Text:
    """Draw the pool in one line; a cell of several slabs shows what matters most."""
    per_cell = -(-len(marks) // _STRIP_CELLS)
    text = Text()
    for start in range(0, len(marks), per_cell):
        cell = marks[start : start + per_cell]
        mark, style = next(shown for shown in _MARKS.values() if shown[0] in cell)
        text.append(mark, style=style)
    return text


def draw(moment: Moment) -> Group:
    """Return the table and the strip."""
    gib = moment.slab_bytes / GIB
    size = f"{len(moment.strip)} slabs of {moment.slab_bytes / MIB:.3g} MiB"
    title = f"process {moment.pid}: {size}, {moment.free} free"
    table = Table(title=title, padding=0)  # or 80 columns would not hold it
    table.add_column("partition", no_wrap=True)
    for name in _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for row in moment.partitions:
        table.add_row(
            row.name,
            str(row.held),
            f"{row.held * gib:.2f}",
            f"{row.reserve}-{row.limit}",
            *map(str, (row.lent, row.revoking, row.late)),
            _whole_ms(row.deadline_ms),
            str(row.pins),
            _whole_ms(row.oldest_pin_ms),
        )
    legend = Text("S serving's  r lent  < leaving  ! late  . free", style="dim")
    lines = (Text(_cap(moment)), *map(Text, _refusals(moment)))
    return Group(table, *lines, _strip(moment.strip), legend)


def _refusals(moment: Moment) -> list[str]:
    """Say how often rollouts were refused, and what the newest certificate failed on."""
    counts = [
        f"{count} {name.replace('_', ' ')}" for name, count in moment.refusals.items() if count
    ]
    lines = [f"refused: {', '.join(counts)}"] if counts else []
    return lines if moment.binding is None else [*lines, f"last failed: {moment.binding}"]


def _cap(moment: Moment) -> str:
    if moment.cap_bytes is None:
        return "cap -"
    if moment.cap_left_ms == 0:
        return "cap ran out: nothing is lent until the next"
    left_ms = moment.cap_left_ms
    until = "until the next" if left_ms is None else f"for {left_ms / MS_PER_S:.1f} s more"
    return f"cap {moment.cap_bytes / GIB:.2f} GiB {until}"


def _whole_ms(time_ms: float | None) -> str:
    return "-" if time_ms is None else f"{time_ms:.0f}"


def _ask(socket_path: str, *, timeout_s: float) -> tuple[LedgerView, Ledger]:
    with Channel.connect(socket_path, timeout_s=timeout_s) as channel:
        channel.send(AskLedger())
        answer, descriptors = channel.receive(timeout_s=timeout_s)
    try:
        match answer:
            case Ledger() if len(descriptors) == 1:
                return LedgerView.open(descriptors[0]), answer
            case Rejected(sentence=sentence):
                raise Unavailable(sentence)
        raise CorruptData(f"what listens at {socket_path} is no device of rose")
    finally:
        close_all(descriptors)


class WatchedDevice:
    """A device that is looked at again and again: its ledger is mapped, its cap is asked for."""

    def __init__(self, socket_path: str, clock: Clock) -> None:
        """Ask for both.

        Raises:
            CorruptData: what listens there is no device.
            Unavailable: nothing does, or it does not want to be looked at.
        """
        self._socket_path = socket_path
        self._clock = clock
        self._ledger, self._said = _ask(socket_path, timeout_s=_PATIENCE_S)
        self._said_ns = clock.now_ns()

    @property
    def pid(self) -> int:
        """Of serving's process."""
        return self._said.pid

    def ask_again(self) -> None:
        """Hear of the cap; one that does not answer now keeps the one it had, until that ends."""
        with suppress(RoseError):
            _, self._said = _ask(self._socket_path, timeout_s=_AGAIN_S)
            self._said_ns = self._clock.now_ns()

    def look(self) -> Moment:
        """Read the ledger; the cap is as it was last said, less the time since."""
        return read_moment(self._ledger, replace(self._said, cap=self._cap()), clock=self._clock)

    def _cap(self) -> tuple[int, float] | None:
        if self._said.cap is None:
            return None
        size_bytes, left_ms = self._said.cap
        left_ms = max(0.0, left_ms - (self._clock.now_ns() - self._said_ns) / NS_PER_MS)
        return size_bytes if left_ms > 0 else 0, left_ms


@click.command()
@click.argument("socket_path", metavar="SOCKET")
@click.option("--once", is_flag=True, help="Show one moment and end.")
@click.option("--json", "as_json", is_flag=True, help="One moment, as JSON.")
@click.option("--every-ms", default=250, show_default=True, type=click.IntRange(min=10))
def top(
    socket_path: str,
    once: bool,  # noqa: FBT001 (a flag of the command line)
    as_json: bool,  # noqa: FBT001 (a flag of the command line)
    every_ms: int,
) -> None:
    """Show who has which slab of the device that listens at SOCKET.

    It only looks: the ledger cannot be written by anybody but its arbiter.
    """
    clock = BootClock()
    device = WatchedDevice(socket_path, clock)
    console = Console(highlight=False)
    if as_json:
        click.echo(json.dumps(asdict(device.look())))
    elif once or not console.is_terminal:
        console.print(draw(device.look()))
    else:
        _follow(device, console, clock, every_s=every_ms / 1e3)


def _follow(device: WatchedDevice, console: Console, clock: Clock, *, every_s: float) -> None:
    """Draw again and again until an interrupt, or until the device's process ends."""
    died = os.pidfd_open(device.pid)
    try:
        with suppress(KeyboardInterrupt), Live(draw(device.look()), console=console) as live:
            while _is_alive(died):
                clock.sleep(every_s)
                device.ask_again()
                live.update(draw(device.look()))
    finally:
        os.close(died)


def _is_alive(pidfd: int) -> bool:
    return not select.select([pidfd], [], [], 0)[0]
