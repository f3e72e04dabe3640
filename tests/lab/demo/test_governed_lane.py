"""A rule of the simulator in front of real engines: what it hears, and what its word does."""

import math
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.clock import BootClock
from rose.errors import InternalError
from rose.slo import SLO, Policy
from rose.slo.latency_file import new_latency_model
from rose_lab.demo import governed_lane
from rose_lab.demo.governed_lane import GovernedLane
from rose_lab.sim.device import StepWork
from rose_lab.sim.governor import Governor, Grain
from rose_lab.sim.governors import HostWindow, RosePaper, Valve

BATCH_TOKENS = 64
# Only bounds how long a test that fails hangs.
SOON_S = 20.0


class Rule(Governor):
    """Says what it is told to say, and notes what it hears."""

    def __init__(self, *, grain: Grain = Grain.SEGMENT, window: int = 1) -> None:
        self.grain = grain
        self.window = window
        self.allows = False
        self.lends = 0
        self.heard: list[tuple[object, ...]] = []
        self.asked = threading.Event()

    def arrived(self, now_ms, request, *, prompt_tokens):
        self.heard.append(("arrived", request, prompt_tokens))

    def lends_until(self, now_ms, work):
        self.asked.set()
        self.lends -= 1
        return math.inf if self.lends >= 0 else now_ms

    def step_begins(self, now_ms, work):
        self.heard.append(("step", work))

    def step_ended(self, now_ms, work, *, took_ms, blocked_ms, lent_ms):
        self.heard.append(("ended", took_ms >= 0, blocked_ms > 0, lent_ms > 0))

    def tokens(self, now_ms, requests):
        self.heard.append(("tokens", *requests))

    def finished(self, now_ms, request):
        self.heard.append(("finished", request))

    def may_start(self, now_ms):
        return self.allows

    def segment_ended(self, now_ms, *, is_last):
        self.heard.append(("segment", is_last))


def lane_with(rule: Governor) -> GovernedLane:
    policy = Policy()
    lane = GovernedLane(
        clock=BootClock(),
        model=new_latency_model(policy, step_tokens=BATCH_TOKENS),
        batch_tokens=BATCH_TOKENS,
    )
    lane.govern(rule)
    return lane


@pytest.fixture
def serving() -> Iterator[ThreadPoolExecutor]:
    """A thread that may wait."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        yield pool


def test_a_piece_runs_only_when_the_rule_says_so() -> None:
    rule = Rule()
    lane = lane_with(rule)
    assert not lane.try_step()
    assert lane.step_thread == 0
    rule.allows = True
    assert lane.try_step()
    assert lane.step_thread == threading.get_ident()
    # One yes is one credit: the gate would not let another piece through.
    assert lane._gate.is_running()
    assert lane._gate.credit_left == 0
    lane.end_rollout_step()
    assert not lane._gate.is_running()
    assert rule.heard == [("segment", True)]


def test_a_segment_rule_is_asked_inside_a_step_and_a_step_rule_is_not() -> None:
    for grain, pieces in ((Grain.SEGMENT, 3), (Grain.STEP, 1)):
        rule = Rule(grain=grain)
        rule.allows = True
        lane = lane_with(rule)
        assert lane.try_step()
        lane.gate()
        lane.gate()
        lane.end_rollout_step()
        ends = [one[1] for one in rule.heard if one[0] == "segment"]
        assert ends == [False] * (pieces - 1) + [True]


def test_what_is_on_its_way_runs_out_after_an_arrival() -> None:
    rule = Rule(grain=Grain.STEP, window=2)
    rule.allows = True
    lane = lane_with(rule)
    assert lane.try_step()
    rule.allows = False
    lane.arrived("a", prompt_tokens=5)
    assert not lane._gate.is_open()
    lane.end_rollout_step()
    assert lane.try_step()  # the second of the window
    lane.end_rollout_step()
    assert not lane.try_step()
    assert rule.heard == [("arrived", 0, 5), ("segment", True), ("segment", True)]


def test_serving_waits_for_all_that_is_on_its_way(serving: ThreadPoolExecutor) -> None:
    rule = Rule(grain=Grain.STEP, window=2)
    rule.allows = True
    lane = lane_with(rule)
    assert lane.try_step()
    rule.allows = False
    lane.arrived("a", prompt_tokens=5)
    lane.end_rollout_step()
    step = serving.submit(lane.begin_step)
    assert rule.asked.wait(SOON_S)
    assert lane.try_step()  # Between two pieces nobody runs, and serving waits all the same.
    assert not step.done()
    lane.end_rollout_step()
    step.result(SOON_S)
    assert rule.heard.count(("segment", True)) == 2


def test_rollouts_go_first_as_often_as_the_rule_lends(serving: ThreadPoolExecutor) -> None:
    rule = Rule(grain=Grain.STEP)
    rule.allows = True
    lane = lane_with(rule)
    assert lane.try_step()
    lane.end_rollout_step()  # The borrower wants more: it is asked about now.
    lane.arrived("a", prompt_tokens=5)
    rule.lends = 2
    step = serving.submit(lane.begin_step)
    assert rule.asked.wait(SOON_S)
    for _ in range(2):
        assert not step.done()
        assert lane.try_step()
        lane.end_rollout_step()
    step.result(SOON_S)
    assert rule.lends == -1
    lane.end_step()
    assert rule.heard[-1][3] is True  # lent


def test_nothing_starts_while_a_step_of_serving_runs() -> None:
    rule = Rule()
    rule.allows = True
    lane = lane_with(rule)
    lane.arrived("a", prompt_tokens=5)
    for end in (lane.end_step, lane.give_step_up):
        lane.begin_step()
        assert not lane.try_step()
        end()
        assert lane.try_step()
        lane.end_rollout_step()


def test_a_borrower_that_does_not_want_is_not_lent_to() -> None:
    rule = Rule()
    lane = lane_with(rule)
    rule.lends = 1
    lane.arrived("a", prompt_tokens=5)
    lane.begin_step()
    assert rule.lends == 1


def test_serving_continues_when_a_piece_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(governed_lane, "_WAIT_MS_MAX", 20.0)
    rule = Rule()
    rule.allows = True
    lane = lane_with(rule)
    assert lane.try_step()
    lane.arrived("a", prompt_tokens=5)
    lane.begin_step()
    assert ("segment", True) not in rule.heard


def test_shut_down_lets_everybody_through() -> None:
    lane = lane_with(Rule())
    lane.arrived("a", prompt_tokens=5)
    lane.shut_down()
    assert lane.try_step()
    lane.gate()
    lane.begin_step()
    lane.end_rollout_step()


def test_a_rule_changes_only_between_windows() -> None:
    lane = lane_with(Rule())
    lane.arrived("a", prompt_tokens=5)
    with pytest.raises(InternalError, match="requests are live"):
        lane.govern(Rule())
    lane.finished("a")
    lane.govern(Rule())


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 90)), max_size=30))
def test_the_rule_hears_of_every_request_and_of_what_the_next_step_does(
    calls: list[tuple[int, int]],
) -> None:
    """Against a plain model: requests by number, tokens of each."""
    rule = Rule()
    lane = lane_with(rule)
    numbers: dict[int, int] = {}
    lengths: dict[int, int] = {}
    tokens: dict[int, int] = {}
    expected: list[tuple[object, ...]] = []
    count = 0
    for name, amount in calls:
        if name not in numbers:
            numbers[name], lengths[name], tokens[name] = count, amount, 0
            expected.append(("arrived", count, amount))
            lane.arrived(str(name), prompt_tokens=amount)
            count += 1
        elif amount % 3:
            tokens[name] += 1
            expected.append(("tokens", numbers[name]))
            lane.emitted(str(name))
        else:
            expected.append(("finished", numbers.pop(name)))
            lane.finished(str(name))
            continue
        running = [one for one in numbers if tokens[one]]
        waiting = sum(lengths[one] for one in numbers if not tokens[one])
        lane.begin_step()
        context = sum(lengths[one] + tokens[one] for one in running)
        room = BATCH_TOKENS - len(running)
        expected.append(("step", StepWork(len(running), context, min(waiting, room))))
    assert [one for one in rule.heard if one[0] != "ended"] == expected


def test_published_rules_hold_over_a_real_gate() -> None:
    """Idle rules refuse while a request is live; the paper's lends a step while there is slack."""
    for rule in (HostWindow(), Valve()):
        lane = lane_with(rule)
        lane.arrived("a", prompt_tokens=5)
        assert not lane.try_step()
        lane.finished("a")
        assert lane.try_step()
        lane.end_rollout_step()
    for tpot_ms, goes_first in ((1e6, True), (1e-6, False)):
        lane = lane_with(Governor())
        lane.govern(RosePaper(SLO(ttft_ms=1e6, tpot_ms=tpot_ms), lane.profile_ms))
        assert lane.try_step()
        lane.end_rollout_step()
        lane.arrived("a", prompt_tokens=5)
        lane.emitted("a")
        with ThreadPoolExecutor(max_workers=1) as pool:
            step = pool.submit(lane.begin_step)
            went = lane.try_step()
            if went:
                lane.end_rollout_step()
            step.result(SOON_S)
        assert went is goes_first
