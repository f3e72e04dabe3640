"""A gate that stays shut ends the lease: a worker that cannot run gives its turns back."""

from collections.abc import Iterator

import pytest

from rose._core import CloseReason
from rose.engines.shut_out import ShutOut
from rose.engines.transformers import Model, Sampling
from rose.engines.transformers.rollout_processor import RolloutProcessor
from rose.events import Reason, Refusal
from rose.scheduler.worker import TurnEnd
from rose.units import NS_PER_MS, NS_PER_S
from tests.engines.borrowed import Borrowed
from tests.engines.policies import generate_alone
from tests.engines.recorder import turn
from tests.known_model import confirm
from tests.waiting import wait_for

PROMPTS = [[(13 * place + 7 * one) % 128 for place in range(30 + one)] for one in range(4)]
PAUSE_NS = 50 * NS_PER_MS


# ---- when ----------------------------------------------------------------------------------------


def wait_until_out(waiter: ShutOut, why: Reason, *, from_ns: int = 0) -> int:
    """Return after how many ns of looks at a closed gate it is shut out."""
    now_ns = from_ns
    while not waiter.is_over_bound:
        now_ns += PAUSE_NS
        waiter.refused(now_ns, lambda: why)
    return now_ns - from_ns


@pytest.mark.parametrize(
    ("why", "bound_s"),
    [
        (Reason.SLO_AT_RISK, 1),
        (Reason.NO_EVIDENCE, 1),
        (Reason.SERVING_BUSY, 10),
        (Reason.NO_HEARTBEAT, 10),
        (Reason.LATE, 10),
    ],
)
def test_bound_depends_on_the_reason(why: Reason, bound_s: int) -> None:
    took_ns = wait_until_out(ShutOut(), why)
    assert bound_s * NS_PER_S < took_ns <= bound_s * NS_PER_S + 2 * PAUSE_NS


def test_a_pass_begins_the_wait_anew() -> None:
    waiter = ShutOut()
    first_ns = wait_until_out(waiter, Reason.SLO_AT_RISK)
    waiter.passed()
    assert not waiter.is_over_bound
    assert wait_until_out(waiter, Reason.SLO_AT_RISK, from_ns=first_ns) == first_ns


def test_who_did_not_ask_was_not_refused() -> None:
    waiter = ShutOut()
    waiter.refused(0, lambda: Reason.SLO_AT_RISK)
    waiter.refused(20 * NS_PER_S, lambda: Reason.SLO_AT_RISK)
    assert not waiter.is_over_bound


def test_reason_is_asked_for_only_when_it_decides() -> None:
    """The answer may be in another process."""
    waiter, asked = ShutOut(), []
    for look in range(400):
        waiter.refused(look * PAUSE_NS, lambda look=look: asked.append(look) or Reason.SERVING_BUSY)
    assert (min(asked), max(asked)) == (21, 200)


# ---- what becomes of a worker --------------------------------------------------------------------


class Gate:
    """Refuses every quantum, as a certificate would whose target no bound fits."""

    def __init__(self, borrowed: Borrowed, monkeypatch: pytest.MonkeyPatch) -> None:
        self._device = borrowed.pair.device
        self._patch = monkeypatch

    def shut(self, reason: Reason = Reason.SLO_AT_RISK) -> None:
        self._patch.setattr(self._device._rollout, "why_refused", lambda: Refusal(reason))
        self._device._parts.creditor.stop()
        self._device.gate.close(CloseReason.STEP)

    def open(self) -> None:
        self._device._parts.creditor.start()

    def shut_within_a_step(self, processor: RolloutProcessor) -> None:
        """Have a step parked at a gate of its own, not a borrower that waits for the next."""
        while True:
            self.shut()
            wait_for(lambda: not self._device.gate.is_running())
            if processor._quantum is not None:
                return
            self.open()


@pytest.fixture
def borrowed(models: tuple[Model, Model]) -> Iterator[Borrowed]:
    made = Borrowed(models[0])
    with made.pair:
        yield made
        made.pair.rollout.stop()
        assert made.received.faults == []
        assert made.pair.device.gave_back is None
        made.pair.device.arbiter.check_invariants()


@pytest.fixture
def gate(borrowed: Borrowed, monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(borrowed, monkeypatch)


def truth(borrowed: Borrowed, trajectory: int, tokens: int) -> list[int]:
    return generate_alone(
        borrowed.model, PROMPTS[trajectory], tokens, Sampling(1000 + trajectory, 1.0)
    )


def start(borrowed: Borrowed, *trajectories: int) -> None:
    borrowed.grant()
    for one in trajectories:
        borrowed.worker.start_turn(turn(one, PROMPTS[one], 80))
    for one in trajectories:
        borrowed.received.wait_tokens(one, 3)


def wait_shut_out(borrowed: Borrowed) -> None:
    borrowed.received.wait_lease(lambda lease: lease.kv_tokens == 0)


def test_turns_come_back_with_their_tokens_and_go_on_under_the_lease_that_follows(
    borrowed: Borrowed, gate: Gate
) -> None:
    start(borrowed, 0, 1)
    gate.shut_within_a_step(borrowed.processor)
    wait_shut_out(borrowed)
    assert [borrowed.received.ends(one) for one in (0, 1)] == [[TurnEnd.INTERRUPTED]] * 2
    # The step that was parked is over, and holds nothing.
    wait_for(lambda: not borrowed.processor.scheduler.active_requests)
    assert borrowed.processor.aborted_steps == 1
    assert borrowed.processor._pin is None
    assert borrowed.received.leases[-1].kv_tokens == 0
    said = {one: borrowed.received.tokens(one) for one in (0, 1)}
    gate.open()
    lease = borrowed.received.wait_lease(lambda lease: lease.grant_epoch == 2)
    assert lease.kv_tokens > 0
    for one, tokens in said.items():
        rest = 80 - len(tokens)
        borrowed.worker.start_turn(
            turn(one, PROMPTS[one] + tokens, rest, first_token=len(tokens), grant_epoch=2)
        )
    borrowed.received.wait_ended(0, 1, times=2)
    for one in (0, 1):
        assert borrowed.received.tokens(one) == truth(borrowed, one, 80)


def test_worker_that_is_shut_out_can_be_revoked_granted_and_stopped(
    borrowed: Borrowed, gate: Gate
) -> None:
    start(borrowed, 0)
    gate.shut()
    wait_shut_out(borrowed)
    leases = len(borrowed.received.leases)
    borrowed.worker.revoke()
    borrowed.worker.grant()
    borrowed.worker.start_turn(turn(1, PROMPTS[1], 20))
    borrowed.received.wait_ended(1)
    assert borrowed.received.ends(1) == [TurnEnd.INTERRUPTED]
    assert len(borrowed.received.leases) == leases
    borrowed.pair.rollout.stop()


def test_lease_waits_for_evidence(models: tuple[Model, Model]) -> None:
    """With the real creditor, and serving steps that nobody has measured."""
    made = Borrowed(models[0], probes=True)
    made.pair.serving.prober = None
    with made.pair:
        made.grant()
        made.worker.start_turn(turn(0, PROMPTS[0], 20))
        wait_shut_out(made)
        assert made.received.ends(0) == [TurnEnd.INTERRUPTED]
        assert made.pair.device.reading().refusals["no_evidence"] > 0
        confirm(made.pair.device._parts.model, 64)
        made.received.wait_lease(lambda lease: lease.grant_epoch == 2 and lease.kv_tokens > 0)
        made.worker.start_turn(turn(0, PROMPTS[0], 20, grant_epoch=2))
        made.received.wait_ended(0, times=2)
        assert made.received.tokens(0) == truth(made, 0, 20)
    assert made.received.faults == []


def test_on_a_gpu_the_lease_ends_while_the_step_stays_at_its_gate(
    borrowed: Borrowed, gate: Gate
) -> None:
    """Segments in a stream can be taken out only by letting them run."""
    start(borrowed, 0)
    processor = borrowed.processor

    class Stream:
        def synchronize(self) -> None:
            pass

    gate.shut_within_a_step(processor)
    processor.stream = Stream()
    try:
        wait_shut_out(borrowed)
        assert borrowed.received.ends(0) == [TurnEnd.INTERRUPTED]
        assert borrowed.pair.device.gate.is_in_step()
        assert processor.aborted_steps == 0
    finally:
        processor.stream = None
    gate.open()
    assert borrowed.received.wait_lease(lambda lease: lease.grant_epoch == 2).kv_tokens > 0
    assert len(borrowed.received.ends(0)) == 1
