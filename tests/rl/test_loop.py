"""The rollout loop: whatever becomes of workers, trajectories are those of an uninterrupted run."""

import math
from collections import Counter
from dataclasses import replace

import pytest

from rose.errors import InternalError, InvalidArgument
from rose.rl.trajectory import TRAJECTORY_TOKENS_MAX, Trajectory
from rose.scheduler import PlacementPolicy
from rose.scheduler.events import Consumed
from rose.scheduler.worker import LeaseChanged, TurnEnd, WorkerLost
from tests.rl.play import (
    CONTEXT_MAX,
    GROUP_SIZE,
    TURN_MAX,
    logprob_at,
    play,
    token_at,
    version_at,
)
from tests.rl.saying_worker import SayingWorker
from tests.rl.stage import BORROWED, LOOP, TOOL_WAIT_S, Stage, joined, make_flight
from tests.rl.storm import Storm


def assert_played(got: Trajectory, *, context_max: int = CONTEXT_MAX) -> None:
    """Hold every token, logprob, version and mask against an uninterrupted run; and the score."""
    truth = play(got.number, got.group, context_max=context_max)
    assert replace(got, reward=0.0) == replace(truth, reward=0.0)
    assert got.reward == pytest.approx(truth.reward)


# ---- tokens --------------------------------------------------------------------------------------


def test_one_steady_worker_says_what_a_plain_play_says() -> None:
    stage = Stage()
    stage.join().grant()
    stage.play_on(until=lambda: len(stage.finished) >= 20)
    for trajectory in stage.finished.values():
        assert_played(trajectory)
    # Neither the length of the turns nor the reward is the same everywhere: it could go wrong.
    assert len({one.turns for one in stage.finished.values()}) > 2
    assert len({one.reward for one in stage.finished.values()}) > 2
    assert len({one.environment for one in stage.finished.values()}) == 2


@pytest.mark.parametrize("policy", PlacementPolicy)
@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_a_trajectory_is_that_of_an_uninterrupted_run(seed, policy) -> None:
    storm = Storm(seed, policy)
    for _ in storm.ticks(until=lambda: len(storm.finished) > 40):
        storm.tick()
    for trajectory in storm.finished.values():
        assert_played(trajectory)
    counts = storm.loop.counts()
    assert counts.resumed > 5
    assert counts.dropped == 0
    assert storm.happened >= {"late", "doubled", "lost", "revoked", "killed", "failed", "shrunk"}


def test_parts_account_for_every_token_of_a_trajectory() -> None:
    storm = Storm(3, PlacementPolicy.JOINT)
    for _ in storm.ticks(until=lambda: len(storm.finished) >= 15):
        storm.tick()
    tokens: Counter[int] = Counter()
    turns: Counter[tuple[int, int]] = Counter()
    for part in storm.loop.parts.done():
        tokens[part.trajectory] += part.tokens
        turns[part.trajectory, part.turn] += 1
        assert part.kind is storm.workers[part.worker].kind
        assert part.is_resumed <= (turns[part.trajectory, part.turn] > 1)
        assert part.start_ns <= part.end_ns
    for number, trajectory in storm.finished.items():
        assert tokens[number] == trajectory.generated_tokens
        assert all(turns[number, turn] for turn in range(trajectory.turns))
    assert max(turns.values()) > 1


def test_of_what_overlaps_each_token_is_taken_once_and_none_beyond_the_turn() -> None:
    stage = Stage(loop_settings={"in_flight": 1, "turn_tokens_max": 5})
    worker = stage.join()
    worker.grant()
    stage.advance()
    worker.say(0, 2)
    (first,) = stage.news
    stage.news *= 2
    stage.advance()
    request = worker.asked[0]
    places = range(len(request.prompt), len(request.prompt) + 7)
    again = replace(
        first,
        tokens=tuple(token_at(request.seed, place) for place in places),
        logprobs=tuple(logprob_at(request.seed, place) for place in places),
        versions=tuple(version_at(request.seed, place) for place in places),
        end=TurnEnd.FINISHED,
    )
    stage.news.append(again)
    stage.advance()
    flight, taken = stage.flights[0], slice(len(request.prompt), len(request.prompt) + 5)
    assert flight.turn == 1
    assert tuple(flight.tokens[taken]) == again.tokens[:5]
    assert tuple(flight.logprobs[taken]) == again.logprobs[:5]
    assert tuple(flight.versions[taken]) == again.versions[:5]
    assert not flight.is_generated[taken.stop]
    (part,) = stage.loop.parts.done()
    assert part.tokens == 5


@pytest.mark.parametrize("is_lost", [False, True], ids=["revoked", "lost"])
def test_a_part_ends_when_its_worker_says_so_and_not_when_the_next_begins(is_lost) -> None:
    stage = Stage(loop_settings={"in_flight": 1})
    first, second = stage.join(0, BORROWED), stage.join(1)
    first.grant()
    stage.advance()
    first.say(0, 2)
    if is_lost:
        stage.news.append(WorkerLost(0, "killed"))
    else:
        first.revoke()
    stage.advance(after_ms=7.0)
    ended_ns = stage.clock.now_ns()
    second.grant()
    stage.advance(after_ms=500.0)
    assert [request.first_token for request in second.asked] == [2]
    (part,) = stage.loop.parts.done()
    assert part.end_ns == ended_ns


# ---- turns ---------------------------------------------------------------------------------------


def test_a_turn_goes_on_at_the_token_with_another_worker() -> None:
    stage = Stage(loop_settings={"in_flight": 1})
    first, second = stage.join(0, BORROWED), stage.join(1)
    first.grant()
    stage.advance()
    first.say(0, 2)
    first.revoke()
    second.grant()
    stage.advance()
    (request,) = second.asked
    assert request.first_token == 2
    assert request.prompt == (*first.asked[0].prompt, *stage.flights[0].said)
    assert request.max_new_tokens == TURN_MAX - 2
    assert request.seed == first.asked[0].seed
    assert stage.loop.counts().resumed == 1


def test_a_trajectory_that_moved_often_was_resumed_once() -> None:
    stage = Stage(loop_settings={"in_flight": 1}, scheduler={"retry_ms": 0.0, "hold_min_ms": 0.0})
    worker = stage.join(0, BORROWED)
    stage.advance()
    for _ in range(3):
        worker.grant()
        stage.advance()
        worker.say(0, 1)
        worker.revoke()
        stage.advance()
    assert [request.first_token for request in worker.asked] == [0, 1, 2]
    assert stage.loop.counts().resumed == 1


def test_a_turn_whose_last_token_came_and_whose_end_was_lost_is_not_run_again() -> None:
    stage = Stage()
    first, second = stage.join(0), stage.join(1)
    first.grant()
    stage.advance()
    for trajectory in list(first.running):
        first.say(trajectory, TURN_MAX, with_end=False)
    assert any(run.said < TURN_MAX for run in first.running.values()), "nobody said EOS"
    stage.advance()
    assert {flight.turn for flight in stage.flights} == {0}
    first.is_up = False
    stage.news.append(WorkerLost(0, "killed before it said that they ended"))
    second.grant()
    stage.advance()
    assert {flight.turn for flight in stage.flights} == {1}
    assert second.asked == []  # Their tools are not done yet.
    stage.advance(after_ms=1000 * TOOL_WAIT_S)
    assert {request.turn for request in second.asked} == {1}
    assert stage.loop.counts().resumed == 0
    stage.play_on(until=lambda: len(stage.finished) >= 6)
    for trajectory in stage.finished.values():
        assert_played(trajectory)


def test_a_worker_that_dies_before_it_hears_of_a_turn_costs_nothing_but_time() -> None:
    stage = Stage(loop_settings={"in_flight": 2})
    first, second = stage.join(0), stage.join(1)
    first.grant()
    first.is_up = False  # Its stream is broken, and the news of that on its way.
    stage.advance()
    assert first.asked == []
    stage.news.append(WorkerLost(0, "its stream broke"))
    second.grant()
    stage.advance()
    assert {request.trajectory for request in second.asked} == {0, 1}
    assert stage.loop.counts().resumed == 0
    stage.play_on(until=lambda: len(stage.finished) >= 4)
    for trajectory in stage.finished.values():
        assert_played(trajectory)


def test_a_worker_may_be_lost_in_the_very_step_that_takes_its_turns() -> None:
    stage = Stage(loop_settings={"in_flight": 1})
    worker, other = stage.join(0, BORROWED), stage.join(1)
    worker.grant()
    stage.advance()
    worker.say(0, 2)
    # A lease that ends recalls its turns: the Stop is for a worker that is gone.
    stage.news += [LeaseChanged(0, worker.epoch, 0, 0.0), WorkerLost(0, "killed")]
    stage.news.append(LeaseChanged(0, worker.epoch + 1, 1000, 0.0))  # It was late.
    other.grant()
    stage.advance()
    stage.advance(after_ms=100.0)
    assert [request.first_token for request in other.asked] == [2]
    assert 0 in worker.running  # Nobody could tell it.


def test_each_turn_waits_for_the_tool_before_it_and_no_longer() -> None:
    def wait_ms(trajectory: int, turn: int) -> int:
        return 2 + (3 * trajectory + turn) % 7

    stage = Stage(wait_s=lambda trajectory, turn: wait_ms(trajectory, turn) / 1000)
    worker = stage.join()
    worker.grant()
    began: dict[tuple[int, int], float] = {}
    ended: dict[tuple[int, int], float] = {}
    for _ in stage.ticks(until=lambda: len(stage.finished) >= 12):
        for trajectory in list(worker.running):
            worker.say(trajectory, TURN_MAX)
        stage.advance(after_ms=1)
        for request in worker.asked:
            began.setdefault((request.trajectory, request.turn), stage.clock.now_ms)
        for flight in stage.flights:
            ended.setdefault((flight.number, flight.turn - 1), stage.clock.now_ms)
    with_tool = 0
    for (trajectory, turn), at_ms in began.items():
        if turn:
            step = stage.flights[trajectory].environment.steps[turn - 1]
            waited_ms = at_ms - ended[trajectory, turn - 1]
            # Without a tool it comes when the loop looks next.
            assert waited_ms == (1 if step.tool is None else wait_ms(trajectory, turn - 1))
            with_tool += step.tool is not None
    assert 0 < with_tool < len(began)


def test_a_trajectory_ends_before_its_context_is_too_long() -> None:
    context_max = 170
    stage = Stage(loop_settings={"context_tokens_max": context_max})
    stage.join().grant()
    stage.play_on(until=lambda: len(stage.finished) >= 20)
    for trajectory in stage.finished.values():
        assert_played(trajectory, context_max=context_max)
        assert len(trajectory.tokens) <= context_max
    short = [n for n, one in stage.finished.items() if one.turns < play(n, one.group).turns]
    assert short, "some of them would have gone on"


def test_a_lease_outlasts_the_time_in_which_the_process_stood_still() -> None:
    stage = Stage()
    worker = stage.join(0, BORROWED, ttl_ms=1000.0)
    worker.grant()
    stage.advance()
    stage.advance(after_ms=60_000.0)  # Its renewals are on their way to us.
    assert worker.running
    worker.report_lease()
    stage.advance(after_ms=900.0)
    stage.advance(after_ms=900.0)  # Nobody stood still, and it renewed nothing for too long.
    assert stage.core.stats().running == len(worker.running) > 0
    stage.advance(after_ms=900.0)
    assert stage.core.stats().running == 0


# ---- trajectories --------------------------------------------------------------------------------


def test_groups_become_complete_though_a_trajectory_is_dropped() -> None:
    stage = Stage(scheduler={"attempts_max": 2})
    worker = stage.join()
    worker.grant()
    for _ in stage.ticks(until=lambda: len(stage.finished) >= 12):
        for trajectory in list(worker.running):
            if trajectory in {1, 5}:
                worker.say(trajectory, 1)
                if trajectory in worker.running:
                    worker.leave(trajectory, TurnEnd.FAILED)
            else:
                worker.say(trajectory, 5)
        stage.advance(after_ms=5.0)
    counts = stage.loop.counts()
    assert counts.dropped == 2
    assert not {1, 5} & set(stage.finished)
    members = Counter(one.group for one in stage.finished.values())
    assert [members[group] for group in range(3)] == [GROUP_SIZE] * 3
    assert max(members.values()) == GROUP_SIZE
    for trajectory in stage.finished.values():
        assert_played(trajectory)


def test_a_worker_that_says_nothing_has_failed_and_another_says_it() -> None:
    stage = Stage()
    silent = stage.join(0, BORROWED)
    silent.grant()
    stage.advance()
    assert silent.running
    for trajectory in list(silent.running):
        silent.leave(trajectory, TurnEnd.FINISHED)
    stage.advance()
    silent.revoke()
    stage.join(1).grant()
    stage.play_on(until=lambda: len(stage.finished) >= 12)
    for trajectory in stage.finished.values():
        assert_played(trajectory)


def test_no_more_begin_than_the_trainer_will_use_soon_enough() -> None:
    stage = Stage(scheduler={"max_staleness": 0, "batch_trajectories": 2})
    worker = stage.join()
    worker.grant()
    stage.play_on(until=lambda: len(stage.finished) == 2)
    for _ in range(50):
        stage.advance(after_ms=50.0)
    assert {request.trajectory for request in worker.asked} == {0, 1}
    stage.news.append(Consumed(2))
    stage.play_on(until=lambda: len(stage.finished) == 4)
    assert {request.trajectory for request in worker.asked} == {0, 1, 2, 3}


@pytest.mark.parametrize(("room", "most"), [(9, 5), (3, 3), (0, 1)])
def test_the_first_turn_too_ends_where_the_context_may(room, most) -> None:
    prompt = len(make_flight(0, 0).tokens)
    limits = {"in_flight": 1, "turn_tokens_max": 5, "context_tokens_max": prompt + room}
    stage = Stage(loop_settings=limits)
    worker = stage.join()
    worker.grant()
    stage.advance()
    assert worker.asked[0].max_new_tokens == most


def test_so_many_are_in_flight_as_was_said() -> None:
    stage = Stage(loop_settings={"in_flight": 4})
    stage.join().grant()
    stage.advance()
    for finished in range(1, 10):
        stage.play_on(until=lambda least=finished: len(stage.finished) >= least)
        stage.advance()
        assert stage.loop.counts().in_flight == 4


@pytest.mark.parametrize(
    "name", ["in_flight", "group_size", "turn_tokens_max", "context_tokens_max"]
)
def test_settings_without_a_meaning_are_refused_by_name(name) -> None:
    with pytest.raises(InvalidArgument, match=name):
        replace(LOOP, **{name: 0})


def test_contexts_that_no_trainer_takes_are_refused() -> None:
    replace(LOOP, context_tokens_max=TRAJECTORY_TOKENS_MAX)
    with pytest.raises(InvalidArgument, match="no trajectory of over 65536 tokens"):
        replace(LOOP, context_tokens_max=TRAJECTORY_TOKENS_MAX + 1)


@pytest.mark.parametrize("temperature", [-1.0, math.nan, math.inf])
def test_a_temperature_without_a_meaning_is_refused(temperature) -> None:
    with pytest.raises(InvalidArgument, match="temperature must be"):
        replace(LOOP, temperature=temperature)


def test_a_worker_joins_under_its_own_number_only() -> None:
    stage = Stage()
    worker = SayingWorker(3, BORROWED, stage.news.append)
    with pytest.raises(InternalError, match="under another's number"):
        stage.loop.join(worker, joined(4, BORROWED))
