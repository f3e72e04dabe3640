"""`rose.publish` and `rose.receive` with `shards=`: all ranks in threads of one process."""

import gc
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import rose
from rose.engines.shards.megatron import MegatronModel, megatron_layout
from rose.errors import CorruptData, DeadlineExceeded, InvalidArgument, Unavailable
from rose.transfer.named import check_whole
from rose.transfer.sharded import patience, publishing
from rose.transfer.sharded.shards import Shards
from tests.engines.shards.two_by_two import BF16, FusedEngine, is_loaded, trainer_model
from tests.waiting import wait_for

TOKEN = "cd" * 32
LONG_S = 60.0
pytestmark = pytest.mark.timeout(200)


def weights(seed: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return {
        name: torch.randn(one.shape).to(BF16) for name, one in trainer_model().state_dict().items()
    }


WEIGHTS = [weights(seed) for seed in range(4)]


def published(weights: Any, shards: Shards, address: str) -> Any:
    """Publish as a rank; versions are numbered from 1."""
    return rose.publish(weights, shards=shards, listen=address, token=TOKEN, first_version=1)


class World:
    """Two ranks of a trainer that hold everything, and engines; each call runs on all ranks."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._pool = stack.enter_context(ThreadPoolExecutor(16))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self.trainer: list[Any] = []
        self.engines: dict[str, list[FusedEngine]] = {}
        self.receivers: dict[str, list[Any]] = {}

    def start(self, call: Callable[..., Any], *arguments: Any) -> Future[Any]:
        return self._pool.submit(call, *arguments)

    def together(self, *calls: Callable[[], Any]) -> list[Any]:
        """Return the results of calls that run at the same time, or their exceptions."""
        futures = [self._pool.submit(call) for call in calls]
        return [one.exception(LONG_S) or one.result() for one in futures]

    def publish(self, rank: int, tensors: dict[str, torch.Tensor], *, ranks: int = 2) -> Any:
        shards = Shards(rank, ranks, within_s=LONG_S)
        made = published(tensors, shards, self.address)
        return self._stack.enter_context(made)

    def begin(self, at: int = 0) -> None:
        self.trainer = self.together(
            *(lambda rank=rank: self.publish(rank, WEIGHTS[at]) for rank in range(2))
        )

    def update(self, at: int) -> list[Any]:
        return self.together(*(lambda one=one: one.update(WEIGHTS[at]) for one in self.trainer))

    def receive(self, name: str, rank: int, ranks: int, *, barrier_s: float = LONG_S) -> Any:
        engine = self.engines[name][rank]
        shards = Shards(
            rank, ranks, name, engine.load_weights, within_s=LONG_S, barrier_s=barrier_s
        )
        made = rose.receive(engine, self.address, shards=shards, token=TOKEN)
        return self._stack.enter_context(made)

    def join(
        self, name: str, ranks: int, *, converts: bool = True, barrier_s: float = LONG_S
    ) -> None:
        self.engines[name] = [FusedEngine(at, ranks, converts=converts) for at in range(ranks)]
        self.receivers[name] = self.together(
            *(
                lambda rank=rank: self.receive(name, rank, ranks, barrier_s=barrier_s)
                for rank in range(ranks)
            )
        )

    def follow(self, name: str, at: int) -> None:
        """Commit until all ranks hold the weights `at`, in the publisher's newest version."""

        def commit(receiver: Any) -> None:
            while receiver.version != self.trainer[0].version:
                receiver.wait(LONG_S)
                receiver.commit()

        assert self.together(*(lambda one=one: commit(one) for one in self.receivers[name])) == [
            None
        ] * len(self.receivers[name])
        assert {one.digest for one in self.receivers[name]} == {self.trainer[0].digest}
        assert self.holds(name, at)

    def holds(self, name: str, at: int) -> bool:
        return all(is_loaded(one, WEIGHTS[at], converts=True) for one in self.engines[name])


@pytest.fixture
def world() -> Iterator[World]:
    with ExitStack() as stack:
        yield World(stack)


def test_known_shards_join_without_change_and_others_by_a_new_layout(world: World) -> None:
    world.begin()
    world.join("one", 1)
    world.follow("one", 0)
    assert world.update(1) == [2, 2]
    world.follow("one", 1)
    world.join("two", 1)
    world.follow("two", 1)
    assert world.trainer[0].version == 2
    world.join("three", 2)
    assert world.trainer[0].version == 3  # the weights of 2, in tiles that fit all engines
    for name in ("one", "two", "three"):
        world.follow(name, 1)
    assert world.update(2) == [4, 4]
    for name in ("three", "two", "one"):
        world.follow(name, 2)


def test_ranks_wait_for_rank_0_and_say_so(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(patience, "FIRST_S", 0.0)
    caplog.set_level(logging.WARNING)
    other = world.start(world.publish, 1, WEIGHTS[0])
    world.engines["one"] = [FusedEngine(0, 1, converts=True)]
    engine = world.start(world.receive, "one", 0, 1)
    patience_of = "rank 1 of the trainer has waited"
    while not (patience_of in caplog.text and "rank 0 of one has waited" in caplog.text):
        assert not other.done()
    world.trainer = [world.publish(0, WEIGHTS[0]), other.result(LONG_S)]
    world.receivers["one"] = [engine.result(LONG_S)]
    world.follow("one", 0)


def test_ranks_with_other_tensors_are_named_on_both_sides(world: World) -> None:
    wider = WEIGHTS[0] | {"3.weight": torch.zeros(131, 64, dtype=BF16)}
    found = world.together(lambda: world.publish(0, WEIGHTS[0]), lambda: world.publish(1, wider))
    for one in found:
        assert isinstance(one, InvalidArgument)
        assert "rank 1 of the trainer has 3.weight as bfloat16 of shape (131, 64), and" in str(one)


def test_trainer_that_cannot_be_planned_is_refused_on_all_ranks(world: World) -> None:
    other = WEIGHTS[0] | {"3.weight": torch.zeros(4, dtype=torch.complex128)}
    found = world.together(lambda: world.publish(0, other), lambda: world.publish(1, other))
    for one in found:
        assert isinstance(one, InvalidArgument)
        assert "3.weight" in str(one)


def test_engine_that_lacks_rows_is_refused_by_name(world: World) -> None:
    world.begin()
    engine = FusedEngine(0, 1)
    engine.register_parameter("more", torch.nn.Parameter(torch.zeros(3, dtype=BF16)))
    world.engines["one"] = [engine]
    with pytest.raises(InvalidArgument, match="no piece describes 3 elements of more on rank 0"):
        world.receive("one", 0, 1)


def test_publisher_of_whole_tensors_says_what_is_needed(world: World) -> None:
    with rose.publish({"w": torch.zeros(3)}, token=TOKEN) as whole:
        world.address = whole.address
        world.engines["one"] = [FusedEngine(0, 1)]
        with pytest.raises(InvalidArgument, match="not of a relay or of a publisher of whole"):
            world.receive("one", 0, 1)


def test_missing_rank_is_named_and_the_next_try_works(world: World) -> None:
    world.begin()
    world.join("one", 2, barrier_s=1.0)
    world.follow("one", 0)
    world.update(1)
    first, second = world.receivers["one"]
    first.wait(LONG_S)
    with pytest.raises(DeadlineExceeded, match="on no rank: rank 1 of one was not ready"):
        first.commit()
    assert world.holds("one", 0)
    second.wait(LONG_S)
    world.follow("one", 1)


def test_rank_that_gave_up_a_later_version_follows_an_older_one(world: World) -> None:
    world.begin()
    world.join("one", 2)
    world.receivers["one"][0]._inner._receiver._snapshot_from = 1 << 40
    world.follow("one", 0)


def test_closed_rank_refuses_at_once_and_a_dropped_one_ends(world: World) -> None:
    world.begin()
    world.join("one", 1)
    world.follow("one", 0)
    [receiver] = world.receivers["one"]
    waiting = world.start(receiver.wait, LONG_S)
    receiver.close()
    for call in (lambda: waiting.result(LONG_S), lambda: receiver.wait(LONG_S), receiver.commit):
        with pytest.raises(Unavailable, match="this receiver was closed"):
            call()
    engine = FusedEngine(0, 1, converts=True)
    shards = Shards(0, 1, "two", engine.load_weights)
    other = rose.receive(engine, world.address, shards=shards, token=TOKEN)
    assert "rose-receiver-two rank 0" in own_threads()
    del other
    gc.collect()
    wait_for(lambda: "rose-receiver-two rank 0" not in own_threads())
    for rank in world.trainer[::-1]:
        rank.close()
        with pytest.raises(Unavailable, match="this publisher was closed"):
            rank.update(WEIGHTS[1])


def test_ranks_of_a_trainer_that_are_dropped_end(world: World) -> None:
    def publish(rank: int) -> Any:
        return published(WEIGHTS[0], Shards(rank, 2, within_s=LONG_S), world.address)

    before = own_threads()
    ranks = world.together(lambda: publish(0), lambda: publish(1))
    assert own_threads() - before >= {"rose-weights", "rose-part", "rose-merger", "rose-chunks"}
    ranks.clear()
    gc.collect()
    wait_for(lambda: own_threads() <= before)


def own_threads() -> set[str]:
    return {one.name for one in threading.enumerate() if one.name.startswith("rose-")}


def test_ranks_ahead_undo_if_one_does_not_commit(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.begin()
    world.join("one", 2, barrier_s=1.0)
    world.follow("one", 0)
    world.update(1)
    first, second = world.receivers["one"]
    for one in (first, second):
        one.wait(LONG_S)
    with monkeypatch.context() as silent:
        silent.setattr(second, "_end", lambda _open: None)  # it commits, and tells nobody
        found = world.together(first.commit, second.commit)
    assert isinstance(found[0], DeadlineExceeded)
    assert "on no rank: rank 1 of one has not committed version 3 in time" in str(found[0])
    assert is_loaded(world.engines["one"][0], WEIGHTS[0], converts=True)
    with pytest.raises(DeadlineExceeded, match="rank 1 of one has not committed version 3"):
        second.commit()
    assert world.holds("one", 0)
    world.follow("one", 1)


def test_tensors_that_somebody_wrote_to_are_repaired_on_that_rank(world: World) -> None:
    world.begin()
    world.join("one", 2, barrier_s=2.0)
    world.follow("one", 0)
    parameter = world.engines["one"][1].get_parameter("pqkv1")
    with torch.no_grad():
        parameter[0, 0] += 1
    world.update(1)
    first, second = world.receivers["one"]
    for one in (first, second):
        one.wait(LONG_S)
    waiting = world.start(first.commit)
    with pytest.raises(CorruptData, match="somebody else wrote to pqkv1"):
        second.commit()
    assert "on no rank: rank 1 of one" in str(waiting.exception(LONG_S))
    assert is_loaded(world.engines["one"][0], WEIGHTS[0], converts=True)
    world.follow("one", 1)


def test_publisher_that_is_restarted_before_it_decides_leaves_the_old_version(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.begin()
    world.join("one", 2, barrier_s=2.0)
    world.follow("one", 0)
    world.update(1)
    for one in world.receivers["one"]:
        one.wait(LONG_S)
    with monkeypatch.context() as silent:
        for one in world.receivers["one"]:  # they commit, and the publisher ends
            silent.setattr(one, "_end", lambda _open: None)
        world.together(*(one.commit for one in world.receivers["one"]))
    for one in world.trainer:
        one.close()
    for one in world.receivers["one"]:
        with pytest.raises(Unavailable, match=r"is unknown: call commit again"):
            one.commit()
    assert world.holds("one", 1)
    world.begin(2)
    for one in world.receivers["one"]:
        with pytest.raises(Unavailable, match=r"undone on this rank.* the publisher was restarted"):
            one.commit()
    assert world.holds("one", 0)
    world.follow("one", 2)


def test_rank_that_cannot_load_makes_all_ranks_undo(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.begin()
    world.join("one", 2)
    world.follow("one", 0)
    world.update(1)
    for one in world.receivers["one"]:
        one.wait(LONG_S)

    def fails(_tiles: object) -> None:
        raise InvalidArgument("planted: the loader failed")

    with monkeypatch.context() as planted:
        planted.setattr(world.receivers["one"][1]._memory, "load", fails)
        found = world.together(*(one.commit for one in world.receivers["one"]))
    for error in found:
        assert isinstance(error, CorruptData)
        assert "on no rank: rank 1 of one could not commit: planted" in str(error)
    assert world.holds("one", 0)
    world.follow("one", 1)


def test_moved_parameters_are_named(world: World) -> None:
    world.begin()
    world.join("one", 1)
    world.follow("one", 0)
    parameter = world.engines["one"][0].get_parameter("po1")
    parameter.data = parameter.data.clone()
    world.update(1)
    [receiver] = world.receivers["one"]
    receiver.wait(LONG_S)
    with pytest.raises(InvalidArgument, match="po1 moved to other memory since"):
        receiver.commit()


def test_engines_follow_a_restarted_trainer(world: World) -> None:
    world.begin()
    world.join("one", 2)
    world.follow("one", 0)
    for one in world.trainer:
        one.close()
    world.begin(2)
    world.follow("one", 2)
    world.update(3)
    world.follow("one", 3)


def test_restarted_rank_of_the_trainer_takes_part_again(world: World) -> None:
    world.begin()
    world.join("one", 2)
    world.trainer[1].close()
    found = world.together(lambda: world.trainer[0].update(WEIGHTS[1]))
    assert isinstance(found[0], Unavailable)
    world.trainer[1] = world.publish(1, WEIGHTS[1])
    world.update(2)
    world.follow("one", 2)


def test_rank_that_misses_an_update_loses_it_for_all(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "PACK_S", 0.5)
    world.begin()
    with pytest.raises(Unavailable, match="rank 1 of the trainer has not reached update 1"):
        world.trainer[0].update(WEIGHTS[1])
    with pytest.raises(Unavailable, match="update 1 failed"):
        world.trainer[1].update(WEIGHTS[1])
    monkeypatch.undo()
    assert world.update(2) == [2, 2]
    world.join("one", 1)
    world.follow("one", 2)


def test_tensors_that_change_their_shape_are_refused(world: World) -> None:
    world.begin()
    other = {**WEIGHTS[1], "1.norm.weight": torch.zeros(7, dtype=BF16)}
    with pytest.raises(InvalidArgument, match=r"1\.norm\.weight was .*64.* and is .*7"):
        world.trainer[0].update(other)


def test_engine_without_a_loader_holds_whole_tensors(world: World) -> None:
    trainer = world.publish(0, WEIGHTS[0], ranks=1)
    held = {name: torch.zeros_like(one) for name, one in WEIGHTS[0].items()}
    shards = Shards(0, 1, within_s=LONG_S, barrier_s=LONG_S)
    with rose.receive(held, trainer.address, shards=shards, token=TOKEN) as receiver:
        receiver.wait(LONG_S)
        receiver.commit()
    assert all(torch.equal(one, WEIGHTS[0][name]) for name, one in held.items())


def test_ranks_of_megatron_publish_by_its_layout(world: World) -> None:
    model = MegatronModel((1,), 16, 4, 2, 4, 24, 20, tp=2, is_tied=True)
    layout = megatron_layout(model)
    specs = layout.shards.tensors
    whole = {name: torch.randn(spec.shape).to(BF16) for name, spec in specs.items()}
    memory: list[dict[str, torch.Tensor]] = [{}, {}]
    for (rank, name), count in layout.storages.items():
        memory[rank][name] = torch.zeros(count, dtype=BF16)
    for piece in layout.shards.pieces:
        region, view = piece.region, piece.view
        box = zip(region.offset, region.shape, strict=True)
        row = memory[piece.rank][view.parameter]
        part = whole[piece.tensor][tuple(slice(at, at + size) for at, size in box)]
        row.as_strided(region.shape, view.strides, view.offset).copy_(part)

    def publish(rank: int) -> Any:
        return published(memory[rank], Shards(rank, 2, layout=layout.shards), world.address)

    with ExitStack() as stack:
        for one in world.together(lambda: publish(0), lambda: publish(1)):
            stack.enter_context(one)
        held = {name: torch.zeros_like(one) for name, one in whole.items()}
        receiver = rose.receive(held, world.address, shards=Shards(0, 1), token=TOKEN)
        stack.enter_context(receiver)
        receiver.wait(LONG_S)
        receiver.commit()
    assert all(torch.equal(one, whole[name]) for name, one in held.items())


def test_parts_are_not_published_as_whole() -> None:
    class Emptied(torch.Tensor):
        ds_shape = torch.Size((4, 4))

    with pytest.raises(InvalidArgument, match="w is empty, because ZeRO-3 keeps"):
        check_whole("w", torch.zeros(0).as_subclass(Emptied))
    check_whole("w", torch.zeros(0))

    part = SimpleNamespace(device_mesh=None)
    with pytest.raises(InvalidArgument, match="w is a DTensor, of which this rank holds a part"):
        check_whole("w", part)


def test_ranks_are_numbers_in_range() -> None:
    for rank, ranks in ((2, 2), (-1, 2), (0, 0)):
        with pytest.raises(InvalidArgument, match="rank must be from 0 to ranks - 1"):
            Shards(rank, ranks)
    with pytest.raises(InvalidArgument, match="every rank of a trainer needs the same token"):
        rose.publish(WEIGHTS[0], shards=Shards(1, 2), listen="127.0.0.1:0")


def test_two_processes_cannot_be_one_rank_of_the_trainer(world: World) -> None:
    world.begin()
    other = world.start(world.publish, 1, WEIGHTS[1])
    other.result(LONG_S)
    found = world.together(
        lambda: world.trainer[0].update(WEIGHTS[1]),
        lambda: world.trainer[1].update(WEIGHTS[1]),
        lambda: other.result(0).update(WEIGHTS[1]),
    )
    assert isinstance(found[1], InvalidArgument)
    assert "another process is rank 1 of the trainer" in str(found[1])
