"""KV that moves between two steps: slabs come empty, and no request notices."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rose.engines.transformers import Model
from rose.memory import KVSpace
from tests.engines.pair import Pair
from tests.engines.stepper import Stepper, blocks_of
from tests.engines.windowed import windowed
from tests.waiting import wait_for

POISON = 0xFF

# Models: all layers alike, or two types of attention whose pages share the blocks.
KINDS = ["alike", "windowed"]


@contextmanager
def stepping(
    models: tuple[Model, Model], monkeypatch: pytest.MonkeyPatch, kind: str, **settings
) -> Iterator[tuple[Stepper, Model]]:
    model = models[1] if kind == "alike" else windowed("gemma3", seed=3)
    truth = models[1] if kind == "alike" else windowed("gemma3", seed=3)
    pair = Pair((models[0], model), **settings)
    try:
        yield Stepper(pair, monkeypatch), truth
    finally:
        pair.rollout.stop()
        pair.serving.stop()
        pair.device.close()
    assert pair.device.gave_back is None
    pair.device.arbiter.check_invariants()


def filled_slabs(space: KVSpace, slabs: int) -> dict[int, list[int]]:
    """Take every block of so many slabs."""
    taken: dict[int, list[int]] = {}
    while True:
        (block,) = space.allocator.alloc(1)
        (slab,) = space.allocator.slabs_of([block])
        if slab not in taken and len(taken) == slabs:
            space.allocator.free([block])
            return taken
        taken.setdefault(slab, []).append(block)


def spread(stepper: Stepper, requests: int) -> list[str]:
    """Bring requests under way, each with blocks of its own in slabs of its own."""
    lane = stepper.pair.rollout_lane
    space = lane.kv
    assert lane.ensure((requests + 1) * space.blocks_per_slab)
    taken = filled_slabs(space, requests)
    names = []
    for one in range(requests):
        space.allocator.free([taken[sorted(taken)[one]].pop()])
        names.append(stepper.client.send(prompt_tokens=8, new_tokens=24))
        stepper.step()
    space.allocator.free([block for blocks in taken.values() for block in blocks])
    assert stepper.processor.cache.is_sparse
    return names


def slabs_in_use(stepper: Stepper) -> int:
    return stepper.pair.rollout_lane.kv.allocator.slabs_in_use


@pytest.mark.parametrize("kind", KINDS)
def test_requests_that_lie_apart_are_moved_together(
    models: tuple[Model, Model], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    with stepping(models, monkeypatch, kind, move_bytes=0) as (stepper, truth):
        spread(stepper, 3)
        before = slabs_in_use(stepper)
        stepper.step()
        assert slabs_in_use(stepper) == before  # not told to, it moves nothing
        stepper.processor._move_bytes = 64 << 20
        stepper.step()
        assert stepper.processor.moved_bytes > 0
        assert slabs_in_use(stepper) < before
        space = stepper.pair.rollout_lane.kv
        free = space.allocator.alloc(space.allocator.free_blocks)  # includes the emptied slabs
        size = space.geometry.block_bytes
        for block in free:
            space.flat()[block * size : (block + 1) * size] = POISON
        space.allocator.free(free)
        stepper.finish()
        assert stepper.client.wrong(truth) == []
        assert stepper.processor.scheduler.preempted_tokens == 0


def test_kv_that_lies_apart_stays_where_a_move_would_overwrite_prefixes(
    models: tuple[Model, Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    with stepping(models, monkeypatch, "alike", move_bytes=0) as (stepper, truth):
        spread(stepper, 3)
        lane = stepper.pair.rollout_lane
        allocator, count = lane.kv.allocator, 3 * lane.kv.blocks_per_slab
        assert lane.ensure(count)
        blocks = allocator.alloc(count)
        keys = [hashlib.md5(bytes([number])).digest() for number in range(count)]
        allocator.publish(blocks, keys)
        allocator.free(blocks)
        assert not stepper.processor.cache.is_sparse
        stepper.processor._move_bytes = 64 << 20
        stepper.step()
        assert stepper.processor.moved_bytes == 0
        assert allocator.lookup(keys) == blocks
        stepper.finish()
        assert stepper.client.wrong(truth) == []


@pytest.mark.parametrize("kind", KINDS)
def test_kv_in_slabs_that_leave_moves_and_its_requests_go_on(
    models: tuple[Model, Model], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    with stepping(models, monkeypatch, kind, move_bytes=0) as (stepper, truth):
        spread(stepper, 2)
        pair, processor = stepper.pair, stepper.processor
        pair.rollout_lane.give_back_idle()
        used = slabs_in_use(stepper)
        processor._move_bytes = 64 << 20
        stepper.prepare()
        pair.device.lender.take_back(1)
        assert slabs_in_use(stepper) == used  # all of them are pinned
        processor._generation_step(stepper.engine.manager.model)
        assert processor.aborted_steps == 0
        processor.update_batch()
        assert processor.aborted_steps == 1
        assert processor.moved_bytes > 0
        assert slabs_in_use(stepper) == used - 1
        wait_for(lambda: pair.device.arbiter.snapshot().partitions[1].held == used - 1)
        assert processor.scheduler.preempted_tokens == 0
        stepper.finish()
        assert stepper.client.wrong(truth) == []


def test_no_more_is_copied_than_the_engine_was_told(
    models: tuple[Model, Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    with stepping(models, monkeypatch, "alike", move_bytes=0) as (stepper, _):
        spread(stepper, 4)
        block = stepper.pair.rollout_lane.kv.geometry.block_bytes
        stepper.processor._move_bytes = 2 * block - 1
        moved = []
        for _ in range(3):
            before = stepper.processor.moved_bytes
            stepper.step()
            moved.append(stepper.processor.moved_bytes - before)
        assert set(moved) <= {0, block}
        assert moved[0] == block


def test_a_prefix_that_moved_is_found_where_it_is(
    models: tuple[Model, Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    with stepping(models, monkeypatch, "alike", move_bytes=0) as (stepper, truth):
        prompt = [(7 * place) % 4096 for place in range(40)]
        lane = stepper.pair.rollout_lane
        assert lane.ensure(3 * lane.kv.blocks_per_slab)
        held = lane.alloc(lane.kv.blocks_per_slab - 1)
        first = stepper.client.send(prompt=prompt, new_tokens=8)
        stepper.step()
        lane.kv.allocator.free(held)
        cache = stepper.processor.cache
        before = blocks_of(cache, first)
        stepper.processor._move_bytes = 64 << 20
        stepper.step()
        assert blocks_of(cache, first) != before
        second = stepper.client.send(prompt=prompt, new_tokens=8)
        stepper.prepare()
        shared = set(blocks_of(cache, first)) & set(blocks_of(cache, second))
        assert len(shared) == len(prompt) // 16
        stepper.processor._generation_step(stepper.engine.manager.model)
        stepper.processor.update_batch()
        stepper.finish()
        assert stepper.client.wrong(truth) == []


def test_a_copy_that_fails_leaves_everything_where_it_is(
    models: tuple[Model, Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise MemoryError

    with stepping(models, monkeypatch, "alike", move_bytes=0) as (stepper, truth):
        spread(stepper, 3)
        used = slabs_in_use(stepper)
        with pytest.raises(MemoryError):
            stepper.processor.cache.move(None, bytes_max=64 << 20, settle=fail)
        assert slabs_in_use(stepper) == used
        allocator = stepper.pair.rollout_lane.kv.allocator
        blocks = allocator.alloc(allocator.free_blocks)  # none is set aside for a move any more
        allocator.free(blocks)
        assert stepper.processor.cache.move(None, bytes_max=64 << 20, settle=lambda: None) > 0
        stepper.finish()
        assert stepper.client.wrong(truth) == []
