"""Arms in short slices, in an order that turns; one is void if others used the device's cores."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar

from rose.clock import Clock
from rose.demo.record import Slice, SliceCounts
from rose.units import NS_PER_S

T = TypeVar("T")
WhyVoid = Callable[[], str | None]


def in_turn(arms: Sequence[T], number: int) -> list[T]:
    """Return the order of the arms in a round: each is first as often as any other."""
    turn = number % len(arms)
    return [*arms[turn:], *arms[:turn]]


class Slices:
    """Takes slices; a void one is taken again while there is time for it.

    Args:
        watch: begins to watch the device; its answer says why the time since then is void.
        clock: where time comes from.
        spare_s: for all slices that are taken again.
    """

    def __init__(self, watch: Callable[[], WhyVoid], clock: Clock, *, spare_s: float) -> None:
        self._watch = watch
        self._clock = clock
        self._spare_s = spare_s
        self._judged = self._void = self._repeated = 0
        self.last_why: str | None = None

    def take(self, run: Callable[[], Slice]) -> Slice:
        """Run a slice until one is not void; return the last, void if there was no time left."""
        while True:
            began_ns, why_void = self._clock.now_ns(), self._watch()
            result = run()
            why = why_void()
            if why is None:
                self._judged += 1
                return result
            self._void += 1
            self.last_why = why
            self._spare_s -= (self._clock.now_ns() - began_ns) / NS_PER_S
            if self._spare_s < 0:
                return replace(result, is_void=True)
            self._repeated += 1

    def counts(self) -> SliceCounts:
        """Return how many slices were judged, void and repeated."""
        return SliceCounts(self._judged, self._void, self._repeated)


_FOREIGN_SHARE_MAX: Final = 0.05
_STEAL_SHARE_MAX: Final = 0.02
# Columns of a `cpu` line of /proc/stat: user nice system idle iowait irq softirq steal guest ...
_BUSY: Final = (0, 1, 2, 5, 6)
_STEAL: Final = 7
_COLUMNS: Final = 8
_PROC: Final = Path("/proc")


@dataclass(frozen=True, slots=True)
class CoreUse:
    """Time of some cores, in seconds, since the machine started.

    Args:
        total_s: of all kinds.
        busy_s: in which a thread or the kernel ran.
        steal_s: that the host of a virtual machine took.
        own_s: CPU time of our threads that may run nowhere else, by thread.
    """

    total_s: float
    busy_s: float
    steal_s: float
    own_s: dict[int, float]


def why_foreign(before: CoreUse, after: CoreUse) -> str | None:
    """Say who else used the cores between two readings; None while that hardly matters."""
    total_s = after.total_s - before.total_s
    if not total_s > 0:
        return None
    own_s = sum(ran_s - before.own_s.get(thread, 0.0) for thread, ran_s in after.own_s.items())
    foreign = max(0.0, after.busy_s - before.busy_s - own_s) / total_s
    steal = (after.steal_s - before.steal_s) / total_s
    if foreign > _FOREIGN_SHARE_MAX:
        return f"others used {100 * foreign:.0f} % of the device's cores"
    if steal > _STEAL_SHARE_MAX:
        return f"the machine's host took {100 * steal:.0f} % of the device's cores"
    return None


def read_core_use(cores: frozenset[int], processes: frozenset[int]) -> CoreUse:
    """Read the use of `cores`, and of it what threads of `processes` are pinned there for."""
    ticks = [0] * _COLUMNS
    for line in (_PROC / "stat").read_text(encoding="ascii").splitlines():
        name, *columns = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cores:
            ticks = [a + int(b) for a, b in zip(ticks, columns[:_COLUMNS], strict=True)]
    per_s = os.sysconf("SC_CLK_TCK")
    return CoreUse(
        total_s=sum(ticks) / per_s,
        busy_s=sum(ticks[column] for column in _BUSY) / per_s,
        steal_s=ticks[_STEAL] / per_s,
        own_s={
            thread: ran_s
            for process in processes
            for thread, ran_s in _pinned(process, cores).items()
        },
    )


def children(process: int) -> frozenset[int]:
    """Return a process and those that it started, with what they started."""
    parents: dict[int, int] = {}
    for path in _PROC.glob("[0-9]*/stat"):
        try:
            fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue  # It has ended.
        parents[int(path.parent.name)] = int(fields[1])
    found = {process}
    while more := {one for one, of in parents.items() if of in found} - found:
        found |= more
    return frozenset(found)


def _pinned(process: int, cores: frozenset[int]) -> dict[int, float]:
    """Return the CPU time in seconds of the threads that may run on `cores` alone."""
    ran_s = {}
    for folder in (_PROC / str(process) / "task").glob("*"):
        thread = int(folder.name)
        try:
            if os.sched_getaffinity(thread) <= cores:
                text = (folder / "schedstat").read_text(encoding="ascii")
                ran_s[thread] = int(text.split()[0]) / NS_PER_S
        except (OSError, ProcessLookupError):
            continue  # It has ended.
    return ran_s
