"""Small traces, a device with round numbers, and a record of what a run did."""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from hypothesis import strategies as st

from rose.slo import SLO
from rose_lab.sim import DeviceModel, Request
from rose_lab.sim.simulation import default_policy

SMALL_SLO = SLO(ttft_ms=500.0, tpot_ms=50.0)
# Prompts of up to three chunks, so that each test sees requests that wait for long.
DEVICE = DeviceModel(chunk_tokens=128, batch_max=8)
POLICY = default_policy(DEVICE)
TURNS = ("alone", "priority", "host_window", "rose_paper", "valve", "clairvoyant")
ROSE = ("rose_idle", "rose", "rose_slack")

_REQUESTS = st.tuples(
    # Gaps within a step, within a few steps, and long enough to fall idle.
    st.sampled_from([0.0, 0.3, 2.0, 7.5, 40.0, 300.0]),
    st.integers(1, 300),
    st.integers(1, 12),
)


def traces(*, most: int = 10) -> st.SearchStrategy[list[Request]]:
    """Return traces with bursts and with idle time."""
    return st.lists(_REQUESTS, min_size=1, max_size=most).map(_trace)


def _trace(rows: Sequence[tuple[float, int, int]]) -> list[Request]:
    arrivals_ms = accumulate(gap_ms for gap_ms, _, _ in rows)
    return [
        Request(arrival_ms, prompt, output)
        for arrival_ms, (_, prompt, output) in zip(arrivals_ms, rows, strict=True)
    ]


class Event(NamedTuple):
    """Something that happened at a time, to a request, a step or a segment."""

    at_ns: int
    what: str
    number: int


class Record:
    """An observer that keeps everything."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, at_ns: int, what: str, number: int) -> None:
        self.events.append(Event(at_ns, what, number))

    def of(self, *kinds: str) -> list[Event]:
        return [event for event in self.events if event.what in kinds]
