"""Requests and protected steps of serving."""

import time

import pytest

import rose
from rose.executor.serving import StepBatch
from tests.api.conftest import CONFIG, LONG_MS, SLO


def batches(rig, monkeypatch: pytest.MonkeyPatch) -> list[StepBatch]:
    seen: list[StepBatch] = []
    stock = rig.serving.lane.lend_within

    def lend_within(step, batch):
        seen.append(batch)
        return stock(step, batch)

    monkeypatch.setattr(rig.serving.lane, "lend_within", lend_within)
    return seen


def emitted(rig) -> tuple[int, int]:
    """First tokens and later tokens that the device has counted."""
    reading = rig.device.executor.reading()
    return tuple(
        tokens[-1][1] if tokens else 0 for tokens in (reading.first_tokens, reading.later_tokens)
    )


def test_a_request_arrives_and_finishes_with_its_block(rig) -> None:
    assert not rig.serving.lane.has_requests
    with rig.serving.request(prompt_tokens=20) as request:
        assert rig.serving.lane.has_requests
        with rig.serving.step(decode=[request]):
            pass
        assert rig.used()[0] == 2
    assert request.is_closed
    assert rig.used()[0] == 0
    assert not rig.serving.lane.has_requests
    request.close()  # once more changes nothing


def test_a_step_computes_all_remaining_tokens_and_gives_one_more(rig, monkeypatch) -> None:
    seen = batches(rig, monkeypatch)
    request = rig.serving.request(prompt_tokens=33)
    other = rig.serving.request(prompt_tokens=16)
    with rig.serving.step(decode=[request]):
        assert len(request.blocks) == 3
    assert (request.tokens, request.computed, request.remaining) == (34, 33, 1)
    with rig.serving.step(decode=[request, other]):
        pass
    assert (request.computed, other.computed) == (34, 16)
    assert seen == [
        StepBatch(0, 33, 33, (request.name,)),
        StepBatch(1, 50, 16, (request.name, other.name)),
    ]
    assert not set(request.blocks) & set(other.blocks)


def test_a_chunk_of_a_prompt_emits_nothing(rig) -> None:
    request = rig.serving.request(prompt_tokens=40)
    with rig.serving.step(prefill={request: 30}):
        assert len(request.blocks) == 2
    assert (request.tokens, request.computed) == (40, 30)
    assert emitted(rig) == (0, 0)
    with rig.serving.step(decode=[request]):
        pass
    assert (request.tokens, request.computed) == (41, 40)
    assert emitted(rig) == (1, 0)


def test_a_step_that_fails_has_computed_and_emitted_nothing(rig) -> None:
    request = rig.serving.request(prompt_tokens=8)
    with pytest.raises(ZeroDivisionError), rig.serving.step(decode=[request]):
        1 / 0  # noqa: B018
    assert (request.tokens, request.computed) == (8, 0)
    assert emitted(rig) == (0, 0)
    with rig.serving.step(decode=[request]):
        pass


def test_a_step_names_each_request_once_and_computes_what_remains(rig) -> None:
    request = rig.serving.request(prompt_tokens=8)
    for wrong in ({"decode": [request] * 2}, {"decode": [request], "prefill": {request: 2}}):
        with pytest.raises(rose.InvalidArgument, match="once"):
            rig.serving.step(**wrong)
    for tokens in (0, 9):
        with pytest.raises(rose.InvalidArgument, match=f"1 to 8 tokens, got {tokens}"):
            rig.serving.step(prefill={request: tokens})
    request.close()
    with pytest.raises(rose.InvalidArgument, match="no tokens left to compute"):
        rig.serving.step(decode=[request])


def test_a_full_pool_is_said_before_anything_runs_and_eviction_makes_room(rig) -> None:
    requests = [rig.serving.request(prompt_tokens=250) for _ in range(10)]
    for request in requests[:9]:  # 16 blocks each, of 144
        assert request.take_blocks(256)
    last = requests[9]
    assert not last.take_blocks(1)
    with pytest.raises(rose.OutOfMemory, match=last.name), rig.serving.step(decode=[last]):
        pytest.fail("it ran")
    with rig.serving.step(decode=[requests[0]]):
        pass
    requests[0].evict()
    assert (requests[0].tokens, requests[0].computed, requests[0].blocks) == (251, 0, [])
    with rig.serving.step(decode=[last]):
        pass
    last.close()
    with rig.serving.step(decode=[requests[0]]):
        pass
    assert (requests[0].tokens, requests[0].computed) == (252, 251)


def test_the_blocks_of_a_step_come_from_rollouts_if_need_be(rig) -> None:
    sequence = rig.sequence(8 * 64)  # 4 slabs
    rig.compute(sequence)
    requests = [rig.serving.request(prompt_tokens=250) for _ in range(9)]
    for request in requests:
        with rig.serving.step(decode=[request]):
            pass
    assert sequence.lost
    assert rig.used() == (144, 0)


def test_warm_up_is_what_lending_begins_with() -> None:
    with rose.open("cpu", slo=SLO, pool_bytes=32 << 20) as device:
        serving = device.serving(CONFIG, step_tokens=64, request_tokens=256)
        borrower = device.borrower(CONFIG)
        sequence = borrower.sequence()
        sequence.grow(10)
        assert list(borrower.steps([sequence], timeout_ms=50)) == []
        ran: list[StepBatch] = []

        def run(batch: StepBatch) -> None:
            ran.append(batch)
            time.sleep(0.001)

        serving.warm_up(run)
        assert set(ran) == {StepBatch(1, 256, 0), StepBatch(0, 256, 64)}
        for step in borrower.steps([sequence], timeout_ms=LONG_MS):
            with step:
                pass
        assert sequence.computed == 10


def test_probes_of_an_idle_engine_are_evidence_enough_and_stop_beside_a_request() -> None:
    with rose.open("cpu", slo=SLO, pool_bytes=32 << 20) as device:
        serving = device.serving(CONFIG, step_tokens=64, request_tokens=256)
        borrower = device.borrower(CONFIG)
        sequence = borrower.sequence()
        sequence.grow(10)
        until = time.monotonic() + LONG_MS / 1000
        while not sequence.computed:
            assert time.monotonic() < until
            serving.probe(lambda _: time.sleep(0.0005))
            for step in borrower.steps([sequence], timeout_ms=1):
                with step:
                    pass
        with serving.request(prompt_tokens=4):
            assert not any(serving.probe(lambda _: None) for _ in range(100))
