"""Every order of calls: a rank group does what its plain twin says, and its ranks stay together."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rose._core import RankGate, RankGroup, RankVote
from tests.reference import rank_group as twin

RANKS = st.integers(0, 1)


class RankGroupMachine(RuleBasedStateMachine):
    """Two ranks in one thread; one may be ahead of the other by any number of calls."""

    @initialize(
        quantum=st.integers(1, 4),
        before_step=st.sampled_from([0, 65_533, 2**32 - 3, 2**46 - 2]),
    )
    def create(self, quantum: int, before_step: int) -> None:
        self.group = RankGroup(ranks=2, quantum=quantum, before_step=before_step)
        fd = self.group.fileno()
        self.gates = [RankGate.attach(fd, rank) for rank in range(2)]
        self.votes = [RankVote.attach(fd, rank) for rank in range(2)]
        self.twin = twin.Group(
            quantum,
            [twin.Rank(before_step) for _ in range(2)],
            credit=(before_step, 0),
            aborted_through=-1,
        )
        self.ends: dict[int, set[tuple[int, str]]] = {}

    @rule(rank=RANKS)
    def begin_step(self, rank: int) -> None:
        self.gates[rank].begin_step()
        self.twin.begin_step(rank)

    @rule(rank=RANKS)
    def end_step(self, rank: int) -> None:
        self.gates[rank].end_step()
        self.twin.end_step(rank)

    @rule(rank=RANKS, times=st.integers(1, 6))
    def try_pass(self, rank: int, times: int) -> None:
        for _ in range(times):
            in_step = self.twin.ranks[rank].in_step
            told = self.gates[rank].try_pass()
            assert (told and told.name) == self.twin.try_pass(rank)
            if in_step and told is not None and told.name != "PASSED":
                step, index = self.gates[rank].passed
                self.ends.setdefault(step, set()).add((index, told.name))

    @rule(segments=st.integers(0, 6))
    def both_agree_and_are_granted(self, segments: int) -> None:
        for rank in range(2):
            self.agree(rank, segments)
        self.grant(segments)

    @rule(rank=RANKS, segments=st.integers(0, 6), age=st.integers(0, 1))
    def agree(self, rank: int, segments: int, age: int = 0) -> None:
        epoch = max(0, self.votes[rank].close_epoch - age)
        agreed = self.votes[rank].agree(segments, expected_epoch=epoch)
        assert agreed == self.twin.agree(rank, segments, epoch)

    @rule(rank=RANKS)
    def close(self, rank: int) -> None:
        self.votes[rank].close()
        self.twin.close(rank)

    @rule(segments=st.integers(0, 9))
    def grant(self, segments: int) -> None:
        assert self.group.grant(segments).name == self.twin.grant(segments)

    @rule(rank=RANKS)
    def abort_step(self, rank: int) -> None:
        assert self.votes[rank].abort_step() == self.twin.abort_step()

    @rule()
    def shut_down(self) -> None:
        self.group.shut_down()
        self.twin.is_shut_down = True

    @invariant()
    def both_say_the_same(self) -> None:
        if not hasattr(self, "group"):
            return
        for rank, one in enumerate(self.twin.ranks):
            assert self.gates[rank].passed == (one.step, one.index)
            assert self.votes[rank].passed == (one.step, one.index)
            assert self.votes[rank].is_parked() == self.twin.is_parked(rank)
            assert self.votes[rank].agrees() == (one.borne is not None)
            step, last = self.twin.credit
            ahead = last - one.index if one.in_step and step == one.step else 0
            assert self.votes[rank].credit_left == max(0, ahead)
        slowest = min((one.step, one.index) for one in self.twin.ranks)
        assert self.group.passed[0] == slowest

    @invariant()
    def what_one_rank_has_started_the_other_may_start(self) -> None:
        """The law that keeps collectives from waiting for ever."""
        if not hasattr(self, "group"):
            return
        for (step, index), ranks in self.twin.started.items():
            for rank in {0, 1} - ranks:
                one = self.twin.ranks[rank]
                if one.step == step and one.in_step and one.index < index:
                    assert self.votes[rank].credit_left >= index - one.index
        for ends in self.ends.values():
            assert len({index for index, _ in ends}) == 1


RankGroupMachine.TestCase.settings = settings(
    deadline=None, max_examples=60, stateful_step_count=50
)
TestRankGroup = RankGroupMachine.TestCase
