"""`rose top SOCKET`: live view of a device's partitions, loans and pins, from its ledger."""

import math
import os
import re
import select
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rose._core import LedgerView, SlabState
from rose.clock import BootClock, Clock
from rose.compute.usage import GpuMeter, GpuUse
from rose.errors import RoseError
from rose.events import SegmentLimit
from rose.executor.messages import AskLedger, Ledger
from rose.executor.observing import ask_device
from rose.units import GIB, MIB, MS_PER_S, NS_PER_MS

_PATIENCE_S: Final = 5.0
_ADDRESS: Final = re.compile(r"[^/]*:[0-9]+")
_WEIGHTS_S: Final = 1.0  # A scrape reads all figures.
_AGAIN_S: Final = 0.25  # Short, so that the view keeps refreshing when the device hangs.
_STRIP_CELLS: Final = 96
_COLUMNS: Final = (
    *("slabs", "GiB", "may have", "lent", "leaving", "late", "due ms"),
    *("pins", "oldest ms"),
)
# Mark and colour of a slab, by its state. A cell for several slabs shows the first state in this
# order that any of these slabs has.
_MARKS: Final = {
    SlabState.QUARANTINED: ("!", "bold red"),
    SlabState.REVOKING: ("<", "yellow"),
    SlabState.GRANTED: ("r", "magenta"),
    SlabState.OWNED: ("S", "green"),
    SlabState.UNOWNED: (".", "dim"),
}


def draw(ledger: LedgerView, reported: Ledger, *, use: GpuUse, clock: Clock) -> Group:
    """Return the view: a table of partitions, the GPU, cap, refusals, the newest kill, the slabs.

    Args:
        ledger: the device's ledger.
        reported: the device's last report of values that are not in the ledger.
        use: load, memory and clocks of serving's GPU.
        clock: the device's clock.

    Raises:
        CorruptData: the ledger's records contradict each other.
        Unavailable: the ledger's writer stopped in the middle of a change.
    """
    ledger.audit()
    records, now_ns = ledger.records(), clock.now_ns()
    states = Counter((record.owner, record.state) for record in records)
    gib = ledger.slab_bytes / GIB
    size = f"{len(records)} slabs of {ledger.slab_bytes / MIB:.3g} MiB"
    free = sum(record.state == SlabState.UNOWNED for record in records)
    # No padding, so that the table fits 80 columns.
    table = Table(title=f"process {reported.pid}: {size}, {free} free", padding=0)
    table.add_column("partition", no_wrap=True)
    for name in _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for one in ledger.partitions():
        if one.is_live or one.quarantined:
            due_ns = 0 if one.revocation is None else one.revocation.due_ns
            table.add_row(
                one.name,
                str(one.held),
                f"{one.held * gib:.2f}",
                f"{one.reserve_slabs}-{one.limit_slabs}",
                str(states[one.id, SlabState.GRANTED]),
                str(states[one.id, SlabState.REVOKING]),
                str(one.quarantined),
                f"{(due_ns - now_ns) / NS_PER_MS:.0f}" if due_ns else "-",
                str(one.pins),
                f"{(now_ns - one.oldest_pin_ns) / NS_PER_MS:.0f}" if one.pins else "-",
            )
    legend = Text("S serving's  r lent  < leaving  ! late  . free", style="dim")
    lines = (f"gpu: {use.sentence}", _cap(reported.cap), *_refusals(reported), *_harm(reported))
    return Group(table, *map(Text, lines), _strip([record.state for record in records]), legend)


def _strip(states: Sequence[SlabState]) -> Text:
    """Draw the pool in one line; a cell of several slabs shows the most important state."""
    per_cell = -(-len(states) // _STRIP_CELLS)
    text = Text()
    for start in range(0, len(states), per_cell):
        cell = states[start : start + per_cell]
        text.append(*next(shown for state, shown in _MARKS.items() if state in cell))
    return text


def _refusals(reported: Ledger) -> list[str]:
    """Return the refusal counts by reason, and the condition that failed last."""
    counts = [
        f"{count} {name.replace('_', ' ')}" for name, count in reported.refusals.items() if count
    ]
    lines = [f"refused: {', '.join(counts)}"] if counts else []
    if reported.segment is not None:
        lines.append(f"too long: {SegmentLimit(*reported.segment).sentence}")
    return lines if reported.binding is None else [*lines, f"last failed: {reported.binding}"]


def _harm(reported: Ledger) -> list[str]:
    """Return what borrowers cost serving, the newest kill, and why none may attach."""
    lines = [*reported.kills[-1:], *filter(None, (reported.barred,))]
    if reported.waited_ms > 0:
        lines.insert(
            0,
            f"waited beyond certificates in 10 min: {reported.waited_ms:.0f} of "
            f"{reported.wait_budget_ms:.0f} ms",
        )
    return lines


def _cap(cap: tuple[int, float] | None) -> str:
    if cap is None:
        return "cap -"
    size_bytes, left_ms = cap
    if left_ms <= 0:
        return "cap expired: nothing is lent until the next cap"
    until = "until the next cap" if math.isinf(left_ms) else f"for {left_ms / MS_PER_S:.1f} s more"
    return f"cap {size_bytes / GIB:.2f} GiB {until}"


class WatchedDevice:
    """A watched device: its ledger is mapped into memory; its cap and its GPU are polled."""

    def __init__(self, socket_path: str, clock: Clock) -> None:
        """Request ledger and cap.

        Raises:
            CorruptData: the listener is not a device of rose.
            Unavailable: nothing listens, or the device refuses to be watched.
        """
        self._socket_path = socket_path
        self._clock = clock
        self._ledger, self._reported = ask_device(socket_path, AskLedger(), timeout_s=_PATIENCE_S)
        self._reported_ns = clock.now_ns()
        self._meter = GpuMeter(self._reported.device, clock=clock)

    @property
    def pid(self) -> int:
        """Process id of serving."""
        return self._reported.pid

    def ask_again(self) -> None:
        """Poll the cap; without an answer, the last cap stays until it expires."""
        with suppress(RoseError):
            _, self._reported = ask_device(self._socket_path, AskLedger(), timeout_s=_AGAIN_S)
            self._reported_ns = self._clock.now_ns()

    def look(self) -> Group:
        """Draw the ledger, the GPU's use, and the last reported cap with the time that it holds."""
        reported = self._reported
        if reported.cap is not None:
            size_bytes, left_ms = reported.cap
            left_ms -= (self._clock.now_ns() - self._reported_ns) / NS_PER_MS
            reported = replace(reported, cap=(size_bytes, left_ms))
        return draw(self._ledger, reported, use=self._meter.read(), clock=self._clock)


@click.command()
@click.argument("place", metavar="SOCKET|ADDRESS")
@click.option("--once", is_flag=True, help="Show the current state and end.")
@click.option("--every-ms", default=250, type=click.IntRange(min=10))
def top(
    place: str,
    once: bool,  # noqa: FBT001 (a flag of the command line)
    every_ms: int,
) -> None:
    """Show the owner of every slab of the device that listens at SOCKET.

    With the metrics ADDRESS (HOST:PORT) of a publisher, relay or receiver of weights: its figures,
    and the version of each receiver. The command is read-only.
    """
    clock, console = BootClock(), Console(highlight=False)
    if _ADDRESS.fullmatch(place):
        _show_weights(place, console, clock, every_s=None if once else every_ms / 1e3)
        return
    device = WatchedDevice(place, clock)
    if once or not console.is_terminal:
        console.print(device.look())
    else:
        _follow(device, console, clock, every_s=every_ms / 1e3)


def _show_weights(address: str, console: Console, clock: Clock, *, every_s: float | None) -> None:
    # Imported here, because it needs the extra `metrics`.
    from rose.cli.top_weights import look  # noqa: PLC0415

    if every_s is None or not console.is_terminal:
        console.print(look(address))
        return
    with suppress(KeyboardInterrupt), Live(look(address), console=console) as live:
        while True:
            clock.sleep(max(every_s, _WEIGHTS_S))
            live.update(look(address))


def _follow(device: WatchedDevice, console: Console, clock: Clock, *, every_s: float) -> None:
    """Redraw until an interrupt, or until the device's process ends."""
    died = os.pidfd_open(device.pid)
    try:
        with suppress(KeyboardInterrupt), Live(device.look(), console=console) as live:
            while _is_alive(died):
                clock.sleep(every_s)
                device.ask_again()
                live.update(device.look())
    finally:
        os.close(died)


def _is_alive(pidfd: int) -> bool:
    return not select.select([pidfd], [], [], 0)[0]
