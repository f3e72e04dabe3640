"""What a borrower says while it waits for its steps."""

from rose.engines.vllm.waiting import Waits
from rose.events import Reason
from rose.units import NS_PER_S

TERM = "the largest step takes 150 ms, and must fit the TPOT target of 100 ms"


class Waiting:
    """Waits on a clock that only `after` moves."""

    def __init__(self, term: str | None = TERM) -> None:
        self._now_ns = 0
        self.lines: list[str] = []
        self.waits = Waits(self, term=lambda: term, report=self.lines.append)

    def now_ns(self) -> int:
        return self._now_ns

    def sleep(self, seconds: float) -> None:
        self._now_ns += int(seconds * NS_PER_S)

    def refused(self, reason: Reason, *, seconds: int, every_s: float = 0.5) -> None:
        self.waits.refused(reason)
        for _ in range(int(seconds / every_s)):
            self.sleep(every_s)
            self.waits.refused(reason)


def test_a_wait_is_reported_after_ten_seconds_with_term_and_remedy() -> None:
    waiting = Waiting()
    waiting.refused(Reason.SLO_AT_RISK, seconds=9)
    assert waiting.lines == []
    waiting.refused(Reason.SLO_AT_RISK, seconds=1)
    (line,) = waiting.lines
    assert line.startswith("no step for 10 s: the next serving request could miss its target")
    assert TERM in line
    assert "larger targets" in line


def test_a_long_wait_is_reported_ever_more_rarely() -> None:
    waiting = Waiting()
    waiting.refused(Reason.SERVING_BUSY, seconds=100)
    said = [line.split(":")[0] for line in waiting.lines]
    assert said == [f"no step for {seconds} s" for seconds in (10, 20, 40, 80)]


def test_a_step_ends_the_wait_and_the_next_wait_is_reported_again() -> None:
    waiting = Waiting()
    for _ in range(2):
        waiting.refused(Reason.SERVING_BUSY, seconds=11)
        waiting.waits.stepped()
    assert len(waiting.lines) == 2


def test_time_without_requests_is_no_wait() -> None:
    waiting = Waiting()
    for _ in range(5):
        waiting.refused(Reason.SERVING_BUSY, seconds=9)
        waiting.waits.idle()
        waiting.sleep(60)
    assert waiting.lines == []
    assert waiting.waits.status()["refused_s"] == {"serving_busy": 45.0}


def test_every_reason_of_a_long_wait_has_a_remedy() -> None:
    for reason in set(Reason) - {Reason.FRAGMENTED, Reason.IN_STEP}:  # These end by themselves.
        waiting = Waiting(term=None)
        waiting.refused(reason, seconds=10)
        assert waiting.lines[0].endswith(")")


def test_the_status_has_reason_and_times() -> None:
    waiting = Waiting()
    assert waiting.waits.status() == {"since_step_s": None, "refused": None, "refused_s": {}}
    waiting.waits.stepped()
    waiting.refused(Reason.BUDGET_SPENT, seconds=3)
    assert waiting.waits.status() == {
        "since_step_s": 3.0,
        "refused": "budget_spent",
        "refused_s": {"budget_spent": 3.0},
    }
    waiting.waits.stepped()
    status = waiting.waits.status()
    assert (status["since_step_s"], status["refused"]) == (0.0, None)


def test_a_wait_of_more_than_a_second_is_an_event_until_a_step_is_planned() -> None:
    waiting = Waiting()
    waiting.refused(Reason.SERVING_BUSY, seconds=1, every_s=0.25)
    waiting.sleep(-0.25)
    assert waiting.waits.event() == {"reason": None}
    waiting.sleep(1.75)
    event = waiting.waits.event()
    assert (event["reason"], event["waited_s"]) == ("serving_busy", 2.5)
    assert "--slowdown" in event["remedy"]
    waiting.waits.stepped()
    assert waiting.waits.event() == {"reason": None}
