"""How often a step crosses from Python into the core, counted by the interpreter."""

import rose._core as core
from tests.api.conftest import LONG_MS, Rig
from tests.crossings import crossings


def test_serving_step_crosses_at_most_ten_times(rig: Rig) -> None:
    request = rig.serving.request(prompt_tokens=15)
    with rig.serving.step([request]):
        pass
    rig.sequence(8)  # a borrower is attached, so each step is protected
    for _ in range(3):  # one of them takes a block
        with crossings() as found, rig.serving.step([request]):
            pass
        assert 1 <= len(found) <= 10, found


def test_step_of_a_borrower_starts_with_at_most_six_crossings_and_each_segment_is_one(
    rig: Rig,
) -> None:
    sequences = [rig.sequence(8), rig.sequence(20), rig.sequence(40)]
    rig.compute(*sequences)
    for tokens in (1, 1, 9):  # the last step takes blocks for each sequence
        for one in sequences:
            one.grow(tokens)
        steps = rig.borrower.steps(sequences, timeout_ms=LONG_MS)
        with crossings() as found:
            step = next(steps)
        assert 1 <= len(found) <= 6, found
        with step:
            for _ in range(3):
                with crossings() as found:
                    step.gate()
                assert len(found) == 1, found
        assert list(steps) == []


def test_every_way_to_call_the_core_is_counted() -> None:
    gate = core.HostGate()
    is_open = gate.is_open
    with crossings() as found:
        gate.close(core.CloseReason.ARRIVAL)
        is_open()  # bound before
        _ = gate.passed, gate.passed
        list(map(core.HostGate.is_running, [gate, gate]))  # called by the interpreter
        core.HostGate()
    assert sorted(found) == sorted(
        [
            "HostGate.close",
            "is_open",
            *["HostGate.passed"] * 2,
            *["HostGate.is_running"] * 2,
            "HostGate.__init__",
        ]
    )
    with crossings() as found:
        len(found)
    assert found == []
