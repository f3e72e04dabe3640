"""Sequences whose blocks rose owns, and steps that give way."""

import threading

import pytest

import rose
from rose.api import borrower as borrower_module
from tests.api.conftest import LONG_MS, LONG_S
from tests.pins import Pins
from tests.waiting import wait_for


def fill_pool(rig, *, requests: int = 9) -> list[rose.Request]:
    """Let serving want so many slabs."""
    made = [rig.serving.request(prompt_tokens=250) for _ in range(requests)]
    for request in made:
        with rig.serving.step(decode=[request]):
            pass
    return made


def test_steps_end_when_no_token_remains(rig) -> None:
    sequence = rig.sequence(20)
    assert (sequence.tokens, sequence.computed, sequence.remaining) == (20, 0, 20)
    steps = []
    for step in rig.borrower.steps([sequence]):
        with step:
            assert step.sequences == (sequence,)
            assert len(sequence.blocks) == 3
            assert sequence.computed == (0 if not steps else sequence.tokens - 1)
        steps.append(step)
        if len(steps) < 3:
            sequence.grow(1)
    assert [step.is_done for step in steps] == [True] * 3
    assert sequence.computed == sequence.tokens == 22
    assert list(rig.borrower.steps([sequence])) == []
    assert list(rig.borrower.steps([])) == []


def test_a_step_waits_for_serving(rig) -> None:
    request = rig.serving.request(prompt_tokens=8)
    sequence = rig.sequence(8)
    thread = rig.start(lambda: rig.compute(sequence))
    thread.join(0.2)
    assert thread.is_alive()
    assert sequence.computed == 0
    request.close()
    thread.join(LONG_S)
    assert sequence.computed == 8


def test_the_device_lends_no_more_after_its_close(open_rig) -> None:
    rig = open_rig()
    sequence = rig.sequence(8)
    rig.device.close()
    with pytest.raises(rose.Unavailable, match="has stopped lending"):
        next(rig.borrower.steps([sequence]))


def test_revocation_takes_blocks_without_a_callback_and_they_come_again(open_rig) -> None:
    rig = open_rig(arrival_memory_ms=1.0)
    sequence = rig.sequence(8 * 96)  # 6 slabs: all that is not reserved
    rig.compute(sequence)
    assert rig.used() == (0, 96)
    requests = fill_pool(rig)
    assert sequence.lost
    assert (sequence.tokens, sequence.computed, sequence.blocks) == (8 * 96, 0, [])
    assert rig.used() == (144, 0)
    for request in requests:
        request.close()
    rig.compute(sequence)
    assert not sequence.lost
    assert len(sequence.blocks) == 96


def test_sequences_with_the_fewest_tokens_lose_theirs_first(rig) -> None:
    long, short = rig.sequence(8 * 48), rig.sequence(8 * 32)
    rig.compute(long, short)
    fill_pool(rig, requests=2)
    assert short.lost
    assert not long.lost
    assert long.computed == 8 * 48


class Parked:
    """A step of `sequences` that stays in its first segment until it may go on to its gate."""

    def __init__(self, rig, *sequences: rose.Sequence) -> None:
        self.may_go_on, self.in_segment = threading.Event(), threading.Event()
        self.rig, self.sequences = rig, sequences
        self.steps: list[rose.BorrowerStep] = []
        self.segments = 0
        self.thread = rig.start(self.run)
        assert self.in_segment.wait(LONG_S)

    def run(self) -> None:
        for step in self.rig.borrower.steps(self.sequences, timeout_ms=LONG_MS):
            with step:
                self.in_segment.set()
                assert self.may_go_on.wait(LONG_S)
                step.gate()
                self.segments += 1
            self.steps.append(step)


def test_an_aborted_step_is_offered_again(open_rig) -> None:
    rig = open_rig(arrival_memory_ms=1.0)
    sequence = rig.sequence(8 * 96)
    parked = Parked(rig, sequence)
    parked.may_go_on.set()
    requests = fill_pool(rig)
    wait_for(lambda: parked.steps)
    assert not parked.steps[0].is_done
    assert (parked.segments, sequence.computed, sequence.lost) == (0, 0, True)
    for request in requests:
        request.close()
    parked.thread.join(LONG_S)
    assert parked.steps[-1].is_done
    assert sequence.computed == 8 * 96


def test_the_step_in_flight_is_spared_while_other_blocks_are_enough(rig) -> None:
    running, waiting = rig.sequence(8 * 32), rig.sequence(8 * 48)
    rig.compute(waiting)
    parked = Parked(rig, running)
    parked.may_go_on.set()
    requests = fill_pool(rig, requests=2)
    assert waiting.lost
    assert not running.lost
    for request in requests:
        request.close()
    parked.thread.join(LONG_S)
    assert [step.is_done for step in parked.steps] == [True]


def test_finish_comes_before_results_and_may_abort(rig, monkeypatch) -> None:
    sequence = rig.sequence(8)
    for step in rig.borrower.steps([sequence]):
        with step:
            step.finish()
            assert not step.is_done
    assert step.is_done
    sequence.grow(1)
    calls = []

    def finish() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise rose.StepAborted("now")

    monkeypatch.setattr(rig.borrower.lane, "finish", finish)
    done = []
    for step in rig.borrower.steps([sequence]):
        with step:
            pass
        done.append(step.is_done)
    assert done == [False, True]


def test_a_failure_within_a_step_goes_on_and_leaves_nothing_pinned(rig) -> None:
    pins = Pins(rig.borrower.lane)
    sequence = rig.sequence(8)
    with pytest.raises(ZeroDivisionError):  # noqa: PT012
        for step in rig.borrower.steps([sequence]):
            with step:
                1 / 0  # noqa: B018
    assert (sequence.computed, step.is_done) == (0, False)
    assert pins.slabs == set()
    rig.compute(sequence)


def test_a_step_outside_of_with_is_refused_and_ended(rig) -> None:
    sequence = rig.sequence(8)
    steps = rig.borrower.steps([sequence])
    next(steps)
    with pytest.raises(rose.InvalidArgument, match="with step"):
        next(steps)
    rig.compute(sequence)


def test_leaving_the_loop_ends_the_step(rig) -> None:
    sequence = rig.sequence(8)
    steps = rig.borrower.steps([sequence])
    next(steps)
    steps.close()
    assert not rig.borrower.lane.is_in_step
    rig.compute(sequence)


def test_a_sequence_grows_to_what_its_borrower_can_hold(rig) -> None:
    sequence = rig.borrower.sequence()
    assert rig.borrower.tokens_max == 6 * 16 * 8
    sequence.grow(6 * 16 * 8)
    for wrong in (1, -1):
        with pytest.raises(rose.InvalidArgument, match=f"cannot grow by {wrong} to {768 + wrong} "):
            sequence.grow(wrong)
    sequence.close()
    with pytest.raises(rose.InvalidArgument, match="must be open to grow, but it is closed"):
        sequence.grow(0)


def test_close_frees_the_blocks(rig) -> None:
    with rig.sequence(20) as sequence:
        rig.compute(sequence)
        assert rig.used() == (0, 3)
    assert rig.used() == (0, 0)
    assert sequence.remaining == 0
    assert list(rig.borrower.steps([sequence])) == []


def test_a_step_in_flight_keeps_the_blocks_of_a_closed_sequence_until_it_ends(rig) -> None:
    sequence = rig.sequence(20)
    for step in rig.borrower.steps([sequence]):
        with step:
            sequence.close()
            assert rig.used() == (0, 3)
    assert rig.used() == (0, 0)


def test_the_last_sequence_makes_room_when_none_can_go_on(rig, monkeypatch) -> None:
    monkeypatch.setattr(borrower_module, "_STUCK_MS", 50.0)
    first, last = rig.sequence(8 * 48), rig.sequence(8 * 48)
    rig.compute(first, last)
    for one in (first, last):
        one.grow(8)
    computed = []
    for step in rig.borrower.steps([first, last], timeout_ms=LONG_MS):
        with step:
            computed.append([one.name for one in step.sequences])
        if step.is_done and first.remaining == 0:
            first.close()
    assert computed == [[first.name], [last.name]]
    assert last.computed == 8 * 49


def test_a_sequence_without_room_waits_and_the_others_go_on(rig) -> None:
    first, last = rig.sequence(8 * 90), rig.sequence(8 * 10)
    sizes = []
    for step in rig.borrower.steps([first, last], timeout_ms=LONG_MS):
        with step:
            sizes.append(len(step.sequences))
        if first.remaining == 0:
            first.close()
    assert sizes == [1, 1]
