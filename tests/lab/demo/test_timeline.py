"""The timeline says from the log alone when rollouts could run."""

from rose.slo.log_file import LogRecord
from rose_lab.demo.timeline import window_timeline

S = 1_000_000_000


def record(kind: str, at_s: float, **fields: int) -> LogRecord:
    return LogRecord(kind, int(at_s * S), fields)


def test_an_arrival_closes_what_was_open() -> None:
    records = [
        record("QUANTUM", 1, mode=0),
        record("QUANTUM", 2, mode=0),
        record("ARRIVED", 3),
        record("QUANTUM", 5, mode=0),
    ]
    timeline = window_timeline(records, slabs=4, start_s=0, end_s=6)
    assert timeline.gate_open == ((1, 3), (5, 6))
    assert timeline.arrivals_s == (3,)


def test_what_was_lent_before_a_step_ends_when_the_step_begins() -> None:
    records = [
        record("ARRIVED", 1),
        record("QUANTUM", 2, mode=1),
        record("QUANTUM", 2.5, mode=1),
        record("STEP", 4, began_ns=3 * S),
        record("QUANTUM", 5, mode=2),
        record("STEP", 5.8, began_ns=int(5.5 * S)),
    ]
    timeline = window_timeline(records, slabs=4, start_s=0, end_s=6)
    assert timeline.gate_open == ((2, 3), (5, 6))
