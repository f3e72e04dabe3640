"""Arms in short slices, in an order that turns; one is void if others used the device's cores."""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, TypeVar

import psutil

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
_KINDS: Final = 8  # of time; those of guests are in them


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


def read_core_use(cores: frozenset[int]) -> CoreUse:
    """Read the use of `cores`, and of it what this process's threads are pinned there for.

    Programs that it started run elsewhere, and their threads are not looked at: Linux keeps an
    entry for each thread that somebody looked at, and while a thread of least priority clears its
    own away, whoever waits for its process spins in the kernel and keeps it from the core.
    """
    every = psutil.cpu_times(percpu=True)
    times = [every[core] for core in cores]
    own_s = {}
    for thread in psutil.Process().threads():
        with suppress(ProcessLookupError):  # It has ended.
            if os.sched_getaffinity(thread.id) <= cores:
                own_s[thread.id] = thread.user_time + thread.system_time
    return CoreUse(
        total_s=sum(sum(one[:_KINDS]) for one in times),
        busy_s=sum(one.user + one.nice + one.system + one.irq + one.softirq for one in times),
        steal_s=sum(one.steal for one in times),
        own_s=own_s,
    )
