"""Arms in short slices and rotating order; foreign use of the device's cores voids a slice."""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, TypeVar

import psutil

from rose.clock import Clock
from rose.units import NS_PER_S
from rose_lab.demo.record import Slice, SliceCounts

T = TypeVar("T")
WhyVoid = Callable[[], str | None]


def in_turn(arms: Sequence[T], number: int) -> list[T]:
    """Return the arms in the order of round `number`; over the rounds each arm is first in turn."""
    turn = number % len(arms)
    return [*arms[turn:], *arms[:turn]]


class SliceTaker:
    """Runs slices, and repeats void ones while time is left.

    Args:
        watch: starts to watch the device; returns a function whose result is the reason that voids
            the slice, or None.
        clock: time source.
        spare_s: total time for repetitions.
    """

    def __init__(self, watch: Callable[[], WhyVoid], clock: Clock, *, spare_s: float) -> None:
        self._watch = watch
        self._clock = clock
        self._spare_s = spare_s
        self._judged = self._void = self._repeated = 0
        self.last_why: str | None = None

    def take(self, run: Callable[[], Slice]) -> Slice:
        """Run a slice; repeat it while it is void and spare time is left; return the last run."""
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
_KINDS: Final = 8  # kinds of CPU time; guest times are already included in user and nice


@dataclass(frozen=True, slots=True)
class CoreUse:
    """CPU time of a set of cores since the machine started.

    Args:
        total_s: time of all kinds.
        busy_s: time in threads or the kernel.
        steal_s: time taken by the host of a virtual machine.
        own_s: CPU time, by thread id, of each of our threads that is pinned to these cores.
    """

    total_s: float
    busy_s: float
    steal_s: float
    own_s: dict[int, float]


def why_foreign(before: CoreUse, after: CoreUse) -> str | None:
    """Return why foreign use of the cores between two readings voids a slice; None if it is low."""
    total_s = after.total_s - before.total_s
    if not total_s > 0:
        return None
    own_s = sum(ran_s - before.own_s.get(thread, 0.0) for thread, ran_s in after.own_s.items())
    foreign = max(0.0, after.busy_s - before.busy_s - own_s) / total_s
    steal = (after.steal_s - before.steal_s) / total_s
    if foreign > _FOREIGN_SHARE_MAX:
        return f"other threads used {100 * foreign:.0f} % of the device's cores"
    if steal > _STEAL_SHARE_MAX:
        return f"the machine's host took {100 * steal:.0f} % of the device's cores"
    return None


def read_core_use(cores: frozenset[int]) -> CoreUse:
    """Read the use of `cores`, and the CPU time of this process's threads pinned there.

    Threads of child processes are not read: they run on other cores, and reading them could delay
    their exit. Linux keeps a /proc entry for every thread that was read, and the thread removes its
    entry when it exits. A process that waits for the exit of a SCHED_IDLE thread spins in the
    kernel, and keeps this thread from its core.
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
