"""The barrier of a replica: whatever ranks do or fail to do, all of them end at one version."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rose.errors import InvalidArgument
from rose.transfer.manifest import Manifest, Version
from rose.transfer.sharded.barrier import Barrier, Ruling, Verdict
from tests.transfer.worker import HandClock

RANKS, WITHIN_S = 3, 10.0
OF_RANKS = st.integers(0, RANKS - 1)


def version(n: int, incarnation: int = 1) -> Version:
    return Version("run", incarnation, n)


def update(one: Version, base: Version) -> Manifest:
    return Manifest(one, base, (0, 0), (0, 0), "00" * 32, 0, 0, ())


class Rank:
    """A rank of an engine: what it holds, what it has staged, and its round."""

    def __init__(self, life: int) -> None:
        self.session = str(life)
        self.held: Version | None = None
        self.staged: Version | None = None
        self.number: int | None = None
        self.before: Version | None = None
        self.failure = ""


class World:
    """Ranks that call the barrier without waiting, and a log that grows."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.barrier = Barrier("engine", RANKS, clock=self.clock)
        self.offers = [update(version(1), version(1))]
        self.lives = 0
        self.ranks: list[Rank] = []
        self.rulings: dict[int, set[Verdict]] = {}
        self.reasons: list[str] = []
        for rank in range(RANKS):
            self.ranks.append(self.born(rank))

    def born(self, rank: int) -> Rank:
        self.lives += 1
        made = Rank(self.lives)
        self.barrier.join(rank, made.session)
        return made

    @property
    def newest(self) -> Version:
        return self.offers[-1].version

    def publish(self) -> None:
        newest = self.newest
        one = version(newest.n + 1, newest.incarnation)
        self.offers.append(update(one, newest))

    def publish_by_another_plan(self) -> None:
        one = version(self.newest.n + 1, self.newest.incarnation + 1)
        self.offers = [update(one, one)]

    def stage(self, at: int) -> None:
        one = self.ranks[at]
        if one.number is None:
            one.staged = self.barrier.target(at, one.session, self.offers)
            if one.staged == one.held:
                one.staged = None

    def come(self, at: int) -> None:
        """Come to the barrier with what is staged; commit if all are there."""
        one = self.ranks[at]
        if one.number is not None or one.staged is None:
            return
        ruling = self.barrier.ready(
            at, one.session, one.staged, self.offers, within_s=WITHIN_S, wait_s=0
        )
        self.note(ruling)
        match ruling.verdict:
            case Verdict.MOVED:
                one.staged = None
            case Verdict.COMMIT:
                one.number, one.before, one.held = ruling.number, one.held, one.staged
                one.staged = None

    def end(self, at: int, failure: str = "") -> None:
        one = self.ranks[at]
        if one.number is None:
            return
        one.failure = one.failure or failure
        ruling = self.barrier.done(at, one.session, one.number, failure=one.failure, wait_s=0)
        self.note(ruling)
        if ruling.verdict is Verdict.UNDO:
            one.held = one.before
        if ruling.verdict in {Verdict.UNDO, Verdict.KEEP}:
            one.number, one.failure = None, ""

    def note(self, ruling: Ruling) -> None:
        self.reasons += [ruling.reason] if ruling.reason else []
        if ruling.verdict in {Verdict.UNDO, Verdict.KEEP}:
            self.rulings.setdefault(ruling.number, set()).add(ruling.verdict)

    def restart(self, at: int) -> None:
        self.ranks[at] = self.born(at)

    def lose(self, at: int) -> None:
        """State that the publisher cannot make what this rank should stage."""
        one = self.ranks[at]
        if one.number is None and one.staged is not None:
            gone = one.staged
            one.staged = self.barrier.target(at, one.session, self.offers, gone=gone)
            if one.staged == gone != self.newest:  # it would be asked for again and again
                raise AssertionError(f"{gone} is gone, and still the next version")

    def settle(self) -> None:
        """Let all ranks go on without faults."""
        for _ in range(4 * len(self.offers) + 8):
            for act in (self.end, self.stage, self.come, self.come, self.end):
                for at in range(RANKS):
                    act(at)


class Barriers(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World()

    @rule(at=OF_RANKS)
    def stage(self, at: int) -> None:
        self.world.stage(at)

    @rule(at=OF_RANKS)
    def come(self, at: int) -> None:
        self.world.come(at)

    @rule(at=OF_RANKS, failure=st.sampled_from(["", "", "", "planted"]))
    def end(self, at: int, failure: str) -> None:
        self.world.end(at, failure)

    @rule(at=OF_RANKS)
    def restart(self, at: int) -> None:
        self.world.restart(at)

    @rule(at=OF_RANKS)
    def lose(self, at: int) -> None:
        self.world.lose(at)

    @rule()
    def publish(self) -> None:
        self.world.publish()

    @rule()
    @precondition(lambda self: self.world.newest.incarnation < 4)
    def publish_by_another_plan(self) -> None:
        self.world.publish_by_another_plan()

    @rule(seconds=st.sampled_from([1.0, WITHIN_S]))
    def sleep(self, seconds: float) -> None:
        self.world.clock.sleep(seconds)

    @invariant()
    def a_round_ends_in_one_way(self) -> None:
        assert all(len(verdicts) == 1 for verdicts in self.world.rulings.values())

    def teardown(self) -> None:
        self.world.settle()
        assert {one.held for one in self.world.ranks} == {self.world.newest}


Barriers.TestCase.settings = settings(stateful_step_count=40)
TestBarriers = Barriers.TestCase


@pytest.fixture
def world() -> World:
    return World()


def all_of(world: World, *acts: str) -> None:
    for act in acts:
        for at in range(RANKS):
            getattr(world, act)(at)


def test_missing_rank_is_named_to_all(world: World) -> None:
    world.stage(0)
    world.stage(2)
    world.come(0)
    world.clock.sleep(WITHIN_S)
    world.come(0)
    assert world.reasons == ["rank 1, 2 of engine was not ready for version 1 in time"]
    all_of(world, "stage", "come", "come")
    assert all(one.number is not None for one in world.ranks)
    world.end(0)
    world.end(1)
    world.clock.sleep(WITHIN_S)
    all_of(world, "end")
    assert set(world.reasons[1:]) == {"rank 2 of engine has not committed version 1 in time"}
    assert [one.held for one in world.ranks] == [None] * RANKS


def test_restarted_rank_gets_the_version_of_the_others(world: World) -> None:
    all_of(world, "stage", "come", "come", "end", "end")
    world.publish()
    world.restart(1)
    world.stage(1)
    assert world.ranks[1].staged == version(1)
    world.come(1)  # alone, since the others hold it
    world.end(1)
    assert {one.held for one in world.ranks} == {version(1)}
    world.settle()
    assert {one.held for one in world.ranks} == {version(2)}


def test_all_move_on_if_that_version_is_gone(world: World) -> None:
    all_of(world, "stage", "come", "come", "end", "end")
    world.publish()
    world.restart(1)
    world.stage(1)
    gone = world.ranks[1].staged
    target = world.barrier.target(1, world.ranks[1].session, world.offers, gone=gone)
    assert target == version(2)
    world.settle()
    assert {one.held for one in world.ranks} == {version(2)}


def test_rank_that_cannot_come_ends_the_wait_of_the_others(world: World) -> None:
    world.stage(0)
    world.come(0)
    world.barrier.refuse(1, world.ranks[1].session, "planted")
    world.come(0)  # in another round
    world.settle()
    assert {one.held for one in world.ranks} == {version(1)}
    reasons = {one.reason for one in world.barrier._decided.values() if one.reason}
    assert reasons == {"rank 1 of engine could not commit: planted"}


def test_second_process_of_a_rank_is_told_to_take_another_name(world: World) -> None:
    before = world.ranks[0]
    world.restart(0)
    with pytest.raises(InvalidArgument, match="another process is rank 0 of engine"):
        world.barrier.target(0, before.session, world.offers)
    with pytest.raises(InvalidArgument, match="does not know round 7"):
        world.barrier.done(1, world.ranks[1].session, 7, failure="", wait_s=0)
