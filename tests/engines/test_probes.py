"""Serving's engine measures its own steps while it is idle, and gives way to the first request."""

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from rose.engines.transformers import Model
from rose.errors import DeadlineExceeded, Unavailable
from rose.executor import StepBatch
from tests.engines.pair import WAIT_S, Client, Pair, would_generate
from tests.waiting import wait_for

WAIT_MS = WAIT_S * 1000


@pytest.fixture
def pair(models: tuple[Model, Model]) -> Iterator[Pair]:
    with Pair(models, probes=True, epsilon=0.1) as made:
        yield made
    assert made.device.gave_back is None
    assert made.serving.error is None


@pytest.fixture
def still(models: tuple[Model, Model]) -> Iterator[Pair]:
    """Give a pair that probes only when a test does."""
    made = Pair(models, probes=True, epsilon=0.1)
    prober, made.serving.prober = made.serving.prober, None
    with made:
        made.serving.prober = prober
        yield made
    assert made.device.gave_back is None


def batches_of(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> list[StepBatch]:
    """Return a list to which each step of serving is added, as it was committed."""
    found: list[StepBatch] = []
    stock = pair.serving_lane.end_step

    def end_step(step, batch: StepBatch) -> None:
        found.append(batch)
        stock(step, batch)

    monkeypatch.setattr(pair.serving_lane, "end_step", end_step)
    return found


def test_rollouts_start_by_themselves_though_no_request_ever_came(pair: Pair) -> None:
    client = Client(pair.rollout, "rollout", 1)
    client.send(prompt_tokens=20, new_tokens=30)
    client.wait()
    assert client.errors() == []
    assert client.wrong(pair.rollout_model) == []
    assert all(one.bound_ms is not None for one in pair.serving_lane.evidence())


def test_warm_up_runs_both_shapes_until_there_is_evidence(
    still: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = batches_of(still, monkeypatch)
    progress: list[tuple[int, int]] = []
    still.serving.prober.warm_up(
        timeout_ms=WAIT_MS, on_progress=lambda done, of: progress.append((done, of))
    )
    assert [one.missing for one in still.serving_lane.evidence()] == [0, 0]
    # 19 scores, and 8 runs of each shape that train the model.
    assert progress[0] == (0, 54)
    assert progress[-1][0] == progress[-1][1]
    chunks = [one for one in batches if one.prefill_tokens >= 48]
    steps = [one for one in batches if one.prefill_tokens == 0]
    assert len(chunks) >= 27
    assert len(steps) >= 27
    assert {one.decode_sequences for one in steps} == {1}
    assert max(one.context_tokens for one in batches) >= 250  # serving's longest has 256


def test_warm_up_that_is_late_says_how_far_it_got(still: Pair) -> None:
    with pytest.raises(DeadlineExceeded, match=r"\d+ runs of the shape 'step' and \d+ runs"):
        still.serving.prober.warm_up(timeout_ms=0.0)


def test_warm_up_waits_for_requests_and_ends_when_the_engine_stops(still: Pair) -> None:
    still.serving_lane.arrived("a", prompt_tokens=8)
    ends: list[Exception] = []

    def warm_up() -> None:
        try:
            still.serving.prober.warm_up(timeout_ms=WAIT_MS)
        except Unavailable as error:
            ends.append(error)

    thread = threading.Thread(target=warm_up)
    thread.start()
    still.serving.stop()
    thread.join(WAIT_S)
    assert len(ends) == 1
    assert still.serving_lane.evidence()[0].scores == 0


def test_a_request_waits_for_one_step_of_a_probe_at_most(
    still: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = batches_of(still, monkeypatch)
    lane, processor = still.serving_lane, still.serving.processor
    stock, waiting = processor._generation_step, []

    def step(model) -> None:
        if len(batches) == 1 and not waiting:  # In the second of the probe's four chunks.
            waiting.append(1)
            lane.arrived("serving-1", prompt_tokens=20)
            client.send(
                prompt_tokens=20, new_tokens=5, on_finish=lambda: lane.finished("serving-1")
            )
        stock(model)

    monkeypatch.setattr(processor, "_generation_step", step)
    client = Client(still.serving, "serving", 3)
    still.serving.prober._probe(decode_steps=0)
    client.wait()
    probed = [one for one in batches if "serving-1" not in one.requests]
    assert len(probed) == 2
    assert client.wrong(still.serving_model) == []
    assert not any(one.block_table for one in processor.cache.cache_allocators.values())


def test_a_probe_leaves_nothing_in_the_prefix_cache(models: tuple[Model, Model]) -> None:
    made = Pair(models, probes=True, serving_prefix_cache=True)
    prober, made.serving.prober = made.serving.prober, None
    with made as pair:
        prober._probe(decode_steps=3)
        (allocator,) = pair.serving.processor.cache.cache_allocators.values()
        assert not allocator.ledger.cached_blocks
        assert not allocator.ledger.hash_to_block


def test_prompts_fill_a_step_together_where_one_is_too_short(still: Pair) -> None:
    prober = still.serving.prober
    still.serving_lane.limits = replace(still.serving_lane.limits, step_tokens=600)
    prompts, new_tokens = prober._prompts(0)
    assert ([len(one) for one in prompts], new_tokens) == ([255] * 3, 1)
    prompts, new_tokens = prober._prompts(1000)
    assert (len(prompts[0]), new_tokens) == (127, 129)


def test_a_prober_that_fails_ends_lending_and_serving_goes_on(
    models: tuple[Model, Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Pair(models, probes=True) as pair:

        def fail(_steps: int) -> None:
            raise RuntimeError("planted")

        monkeypatch.setattr(pair.serving.prober, "_prompts", fail)
        wait_for(lambda: pair.device.gave_back)
        assert "planted" in pair.device.gave_back
        client = Client(pair.serving, "serving", 3)
        client.send(prompt_tokens=20, new_tokens=5)
        client.wait()
        answer = next(iter(client.answers.values()))
        assert would_generate(pair.serving_model, answer.prompt_ids, answer.generated_tokens)


def test_engine_that_stops_within_a_probe_lends_on(still: Pair) -> None:
    """Stopping and starting again ends probes, and is no failure."""
    for _ in range(2):
        still.serving.prober.start()
        wait_for(lambda: still.serving.prober.names)
        still.serving.stop()
        still.serving.start()
    assert still.device.gave_back is None
