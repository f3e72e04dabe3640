"""The ranks of a replica are in use at one version or at none, whatever is lost, late or dead."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.errors import InvalidArgument
from rose.transfer.replicas.messages import Order, OrderKind, RankPhase, Word
from rose.transfer.replicas.rank import ReplicaRank, Todo
from rose.transfer.replicas.replica import ReplicaCommit, ReplicaState
from rose.transfer.version import Version
from tests.transfer.replica_world import APPLY_S, HOLD_S, ReplicaWorld, version

EVENTS = (
    *("flow", "flow", "echo", "publish") * 6,
    *("say", "word", "order", "stage", "look") * 3,
    *("tick", "lose", "double", "late"),
    *("kill", "start", "kill coordinator", "start coordinator", "fail", "mend"),
)


def happen(world: ReplicaWorld, event: str, where: int) -> None:
    rank = where % world.count
    match event:
        case "say":
            world.say(is_lossy=True)
        case "word" if world.words:
            world.deliver_word(where % len(world.words))
        case "order" if world.orders:
            world.deliver_order(where % len(world.orders))
        case "flow":
            world.flow(where)
        case "echo":
            world.echo(where)
        case "stage" if rank in world.engines:
            world.stage(rank)
        case "look" if rank in world.engines:
            world.look(rank)
        case "tick":
            world.tick(0.5)
        case "late":
            world.tick(HOLD_S if where % 2 else APPLY_S)
        case "publish" if where % 3 == 0:
            world.newest += 1
        case "lose":
            world.words, world.orders = world.words[1:], world.orders[1:]
        case "double":
            world.words, world.orders = 2 * world.words[:30], 2 * world.orders[:30]
        case "kill":
            world.kill_rank(rank)
        case "start" if rank not in world.engines:
            world.start_rank(rank, where % (world.newest + 1) - (where % 5 == 0))
        case "kill coordinator":
            world.kill_coordinator()
        case "start coordinator" if world.coordinator is None:
            world.start_coordinator()
        case "fail":
            world.failing.add(rank)
        case "mend":
            world.failing.discard(rank)


@given(
    count=st.integers(1, 4),
    seed=st.integers(0, 1 << 20),
    events=st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 1 << 10)), max_size=150),
)
def test_ranks_in_use_are_at_one_version_and_none_is_left_holding(
    count: int, seed: int, events: list[tuple[str, int]]
) -> None:
    world = ReplicaWorld(count, seed)
    for event, where in events:
        happen(world, event, where)
        world.check()
    world.fall_silent()
    world.settle()


@pytest.mark.parametrize("seed", range(30))
def test_long_life_of_a_replica_ends_at_the_newest_version(seed: int) -> None:
    world = ReplicaWorld(2 + seed % 3, seed)
    for _ in range(1200):
        happen(world, world.rng.choice(EVENTS), world.rng.randrange(1 << 10))
        world.check()
    world.settle()


def met_pair() -> ReplicaWorld:
    """Return two ranks that are in use at version 0, with version 1 staged and begun."""
    world = ReplicaWorld(2, 0)
    world.settle()
    world.newest = 1
    for rank in range(2):
        world.stage(rank)
    pass_words(world)
    assert world.coordinator is not None
    assert world.coordinator.order.kind is OrderKind.BEGIN
    return world


def pass_words(world: ReplicaWorld) -> None:
    world.say(is_lossy=False)
    while world.words:
        world.deliver_word(0)
    world.orders.clear()


def pass_orders(world: ReplicaWorld, *ranks: int) -> None:
    world.say(is_lossy=False)
    world.words.clear()
    for at in range(len(world.orders) - 1, -1, -1):
        if world.orders[at][0] in ranks:
            world.deliver_order(at)
    world.orders.clear()


def match_both(world: ReplicaWorld) -> None:
    pass_orders(world, 0, 1)
    for rank in range(2):
        for _ in range(6):
            world.look(rank)
        assert world.engines[rank].rank.phase is RankPhase.MATCHED


def test_nobody_keeps_before_all_have_matched() -> None:
    world = met_pair()
    pass_orders(world, 0, 1)
    for _ in range(6):
        world.look(0)
    pass_words(world)
    assert world.coordinator is not None
    assert world.coordinator.state is ReplicaState.APPLYING
    assert world.engines[0].rank.phase is RankPhase.MATCHED
    assert world.engines[0].weights == 1
    world.kill_rank(1)
    pass_orders(world, 0)
    world.look(0)
    assert world.engines[0].weights == 0
    world.settle()


def test_rank_that_hears_keep_too_late_is_brought_to_the_version_that_the_other_kept() -> None:
    world = met_pair()
    match_both(world)
    pass_words(world)
    assert world.coordinator is not None
    assert world.coordinator.state is ReplicaState.KEEPING
    pass_orders(world, 0)
    world.look(0)
    world.tick(HOLD_S)  # Rank 1 has heard nothing, and goes back.
    world.look(1)
    assert [world.engines[rank].weights for rank in range(2)] == [1, 0]
    assert not any(engine.is_running for engine in world.engines.values())
    world.settle()
    assert [world.engines[rank].weights for rank in range(2)] == [1, 1]


def test_rank_that_holds_goes_back_when_its_coordinator_is_gone() -> None:
    world = met_pair()
    match_both(world)
    world.kill_coordinator()
    for rank in range(2):
        world.look(rank)
        assert world.engines[rank].weights == 0
    world.settle()


def test_word_to_keep_counts_more_than_what_comes_after_it() -> None:
    world = met_pair()
    match_both(world)
    pass_words(world)
    pass_orders(world, 0, 1)
    world.kill_coordinator()
    world.tick(HOLD_S)
    for rank in range(2):
        world.look(rank)
        assert world.engines[rank].rank.phase is RankPhase.KEPT
    world.settle()


def test_version_that_a_rank_cannot_commit_is_begun_again_only_by_a_newer_one() -> None:
    world = met_pair()
    world.failing.add(1)
    pass_orders(world, 0, 1)
    for rank in range(2):
        for _ in range(6):
            world.look(rank)
    pass_words(world)
    assert world.coordinator is not None
    assert world.coordinator.order.kind is OrderKind.STOP
    pass_orders(world, 0, 1)
    world.look(0)
    assert [world.engines[rank].weights for rank in range(2)] == [0, 0]
    world.settle()


def test_repair_of_one_rank_takes_all_out_of_use_until_it_is_in() -> None:
    world = ReplicaWorld(2, 1)
    world.settle()
    world.engines[1].rank.staged(version(0))
    pass_words(world)
    assert world.coordinator is not None
    assert world.coordinator.order.kind is OrderKind.STOP
    assert world.coordinator.order.version == version(0)
    world.engines[1].lies_ready = 0
    pass_orders(world, 0, 1)
    for rank in range(2):
        world.look(rank)
        assert not world.engines[rank].is_running
    world.settle()


def test_ranks_without_a_version_are_never_in_use() -> None:
    world = ReplicaWorld(2, 2)
    for rank in range(2):
        world.kill_rank(rank)
        world.start_rank(rank, -1)
    for _ in range(10):
        pass_words(world)
        pass_orders(world, 0, 1)
        for rank in range(2):
            world.look(rank)
            assert not world.engines[rank].is_running


def test_quarantined_rank_keeps_its_replica_out_of_use() -> None:
    world = met_pair()
    match_both(world)
    world.kill_coordinator()
    world.engines[1].rank.ended(version(-1), is_kept=False, is_fault=True, is_lost=True)
    world.engines[1].before, world.engines[1].weights = None, -1
    world.start_coordinator()
    for _ in range(20):
        pass_words(world)
        pass_orders(world, 0, 1)
        for rank in range(2):
            world.look(rank)
        assert not any(engine.is_running for engine in world.engines.values())


def test_a_replica_has_ranks_and_time() -> None:
    with pytest.raises(InvalidArgument):
        ReplicaCommit(0, 1)
    with pytest.raises(InvalidArgument):
        ReplicaCommit(1, 1, apply_s=0)
    with pytest.raises(InvalidArgument):
        ReplicaRank(-1, 1, version(0))
    with pytest.raises(InvalidArgument):
        ReplicaCommit(2, 1).joined(2, 1, 0)


def said(rank: int, **changes: object) -> Word:
    """Return what a rank says that has stopped at version 1, in the third round of two ranks."""
    word = Word(rank, 10 + rank, 7, 3, 5, RankPhase.STOPPED, version(1))
    return replace(word, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"round": 2},
        {"coordinator": 6},
        {"incarnation": 99},
        {"phase": RankPhase.APPLYING},
        {"held": version(0)},
        {"staged": version(1)},
        {"rank": 5},
    ],
)
def test_replica_is_in_use_only_when_all_ranks_say_so_here_and_now(changes: dict) -> None:
    replica = ReplicaCommit(2, 7)
    for rank in range(2):
        replica.joined(rank, 10 + rank, 0)
    replica.heard(said(0), 0)
    replica.heard(replace(said(1), **changes), 0)
    assert replica.version is None
    assert replica.order.kind is OrderKind.STOP
    assert replica.state is ReplicaState.LEVELLING


def test_late_word_does_not_undo_a_later_one() -> None:
    replica = ReplicaCommit(2, 7)
    for rank in range(2):
        replica.joined(rank, 10 + rank, 0)
    replica.heard(said(1, phase=RankPhase.APPLYING), 0)
    replica.heard(said(1, sequence=4), 0)
    replica.heard(said(0), 0)
    assert replica.version is None
    replica.heard(said(1, sequence=6), 0)
    assert replica.version == version(1)


def test_ranks_that_never_answer_are_stopped_when_their_time_is_up() -> None:
    world = met_pair()
    assert world.coordinator is not None
    world.coordinator.tick(world.now_ns + int((APPLY_S - 0.1) * 1e9))
    assert world.coordinator.order.kind is OrderKind.BEGIN
    world.coordinator.tick(world.now_ns + int(APPLY_S * 1e9))
    assert world.coordinator.order.kind is OrderKind.STOP


def test_rank_begins_once_in_a_round() -> None:
    world = met_pair()
    begin = world.coordinator.order
    rank = world.engines[0].rank
    rank.ordered(begin, world.now_ns)
    rank.tick(world.now_ns + int(HOLD_S * 1e9))
    assert rank.phase is RankPhase.BACK
    rank.ordered(begin, world.now_ns)
    assert rank.phase is RankPhase.BACK


def begun_rank() -> ReplicaRank:
    rank = ReplicaRank(0, 1, version(1))
    rank.met(7)
    rank.staged(version(2))
    rank.ordered(Order(7, 1, OrderKind.BEGIN, version(2)), 0)
    assert rank.todo() is Todo.TAKE
    return rank


@pytest.mark.parametrize("lies_ready", [None, version(1)])
def test_rank_leaves_what_is_not_what_it_was_to_begin(lies_ready: Version | None) -> None:
    rank = begun_rank()
    rank.staged(lies_ready)
    assert (rank.phase, rank.todo()) == (RankPhase.BACK, Todo.WAIT)


def test_rank_goes_back_from_what_it_took_and_was_not_to_begin() -> None:
    rank = begun_rank()
    rank.took(version(1))
    rank.ordered(Order(7, 1, OrderKind.KEEP, version(2)), 0)
    assert rank.todo() is Todo.ABANDON
    rank.ended(version(1), is_kept=False, is_fault=False)
    assert (rank.phase, rank.todo()) == (RankPhase.BACK, Todo.WAIT)


def test_rank_is_not_in_use_at_what_it_does_not_hold() -> None:
    rank = ReplicaRank(0, 1, version(1))
    rank.met(7)
    rank.ordered(Order(7, 1, OrderKind.USE, version(2)), 0)
    assert not rank.is_in_use
    rank.ordered(Order(7, 1, OrderKind.USE, version(1)), 0)
    assert rank.is_in_use


def test_order_of_a_round_before_says_nothing() -> None:
    rank = ReplicaRank(0, 1, version(1))
    rank.met(7)
    rank.ordered(Order(7, 2, OrderKind.STOP, None), 0)
    rank.ordered(Order(7, 1, OrderKind.USE, version(1)), 0)
    assert not rank.is_in_use


def test_ranks_that_all_have_only_what_one_could_not_reach_go_there_all_the_same() -> None:
    replica = ReplicaCommit(2, 7)
    for rank in range(2):
        replica.joined(rank, 10 + rank, 0)
    nameless = version(-1)
    replica.heard(said(0, held=nameless, staged=version(0)), 0)
    replica.heard(said(1, held=nameless, staged=version(1)), 0)
    assert replica.order == Order(7, 4, OrderKind.STOP, version(1))
    at = {"held": nameless, "round": 4, "sequence": 6}
    replica.heard(said(0, staged=version(0), unreachable=version(1), **at), 0)
    replica.heard(said(1, staged=version(1), **at), 0)
    assert replica.order.version == version(1)


def test_rank_that_had_left_alone_when_all_were_told_to_go_on_is_brought_back_to_the_others() -> (
    None
):
    replica = ReplicaCommit(2, 7)
    for rank in range(2):
        replica.joined(rank, 10 + rank, 0)
    for rank in range(2):
        replica.heard(said(rank), 0)
    assert replica.version == version(1)
    # It was already to go to version 2 by itself, and all that it said before was that it had not.
    replica.heard(said(1, sequence=6, phase=RankPhase.APPLYING), 0)
    assert replica.order.kind is OrderKind.USE
    replica.heard(said(1, sequence=7, held=version(2)), 0)
    assert replica.order == Order(7, 4, OrderKind.STOP, None)
    for rank, held in enumerate((version(1), version(2))):
        replica.heard(said(rank, sequence=8, round=4, held=held), 0)
    assert replica.order == Order(7, 5, OrderKind.STOP, version(2))
