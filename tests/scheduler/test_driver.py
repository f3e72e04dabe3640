"""What the driver may say, who is admitted, and who comes first."""

import re
from typing import Any

import pytest

from rose.errors import InvalidArgument
from rose.scheduler.events import (
    Admit,
    Consumed,
    Drop,
    DropReason,
    GrantChanged,
    JobJoined,
    Start,
    TrajectoryCreated,
    TrajectoryEnded,
    TurnReady,
    VersionCommitted,
    VersionPublished,
    WorkerJoined,
    WorkerLost,
)
from rose.scheduler.worker import TurnEnd
from tests.scheduler.rig import BORROWED, DEDICATED, Rig, ended, progress


def joined(**changes: Any) -> WorkerJoined:
    of = {
        "worker": 3,
        "kind": DEDICATED,
        "domain": 0,
        "seats": 1,
        "prefill_tokens_per_s": 1.0,
        "decode_step_ms": 1.0,
        "decode_ms_per_sequence": 0.0,
        "version": 0,
    }
    return WorkerJoined(**(of | changes))


# ---- contradictions ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("events", "says"),
    [
        ([TrajectoryCreated(1, 0)], "trajectory=1): it exists already"),
        ([TrajectoryCreated(9, 0), TrajectoryCreated(9, 0)], "trajectory=9): it exists already"),
        ([TrajectoryCreated(-1, 0)], ">= 0"),
        ([TurnReady(1, 0, 5, 5)], "it has a turn already"),
        ([TurnReady(2, 1, 5, 5)], "its next turn is 0, not 1"),
        ([TurnReady(2, 0, 5, 5), TurnReady(2, 0, 5, 5)], "it has a turn already"),
        ([TurnReady(2, 0, -1, 5)], "context_tokens"),
        ([TurnReady(2, 0, 5, 0)], "max_new_tokens"),
        ([TurnReady(2, 0, 5, 1 << 50)], "max_new_tokens"),
        ([TurnReady(8, 0, 5, 5)], "it does not exist"),
        ([TrajectoryCreated(8, 0), TurnReady(8, 0, 5, 5)], "it was not admitted"),
        ([TrajectoryEnded(8)], "it does not exist"),
        ([TrajectoryEnded(2), TrajectoryEnded(2)], "it does not exist"),
        ([Consumed(1)], "0 are done"),
        ([TrajectoryEnded(2), Consumed(2)], "1 are done"),
        ([Consumed(-1)], "done and not consumed"),
        ([VersionPublished(-1)], "from 0 to 2^40"),
        ([joined(worker=0)], "it exists already"),
        ([joined(), joined()], "it exists already"),
        ([joined(worker=-1)], "its number"),
        ([joined(seats=0)], "seats"),
        ([joined(prefill_tokens_per_s=0.0)], "prefill_tokens_per_s"),
        ([joined(decode_step_ms=float("nan"))], "decode_step_ms"),
        ([joined(decode_ms_per_sequence=-1.0)], "decode_ms_per_sequence"),
        ([joined(version=-1)], "version"),
        ([object()], "has no event like"),
    ],
)
def test_contradiction_is_refused_and_nothing_of_the_batch_is_applied(events, says) -> None:
    rig = Rig()
    rig.join(0, seats=1)
    rig.run(1)
    rig.step(TrajectoryCreated(2, 0))
    before = rig.core.stats()
    with pytest.raises(InvalidArgument, match=re.escape(says)) as refused:
        rig.step(TrajectoryCreated(5, 0), joined(worker=4), *events)
    assert "\n" not in str(refused.value)
    assert rig.core.stats() == before
    assert rig.step(TrajectoryCreated(5, 0)) == [Admit(5)]


def test_time_does_not_go_backwards() -> None:
    rig = Rig()
    rig.step(after_ms=10)
    with pytest.raises(InvalidArgument, match="the time of the last step"):
        rig.step(after_ms=-1)


@pytest.mark.parametrize(
    "event",
    [
        GrantChanged(9, 1, 100, 0.0),
        GrantChanged(0, 2, -1, 0.0),
        GrantChanged(0, 2, 1 << 60, 0.0),
        GrantChanged(0, -2, 100, 0.0),
        GrantChanged(0, 2, 100, -1.0),
        GrantChanged(0, 2, 100, float("nan")),
        WorkerLost(9),
        VersionCommitted(9, 1),
        VersionCommitted(0, -1),
        VersionPublished(0),
    ],
)
def test_news_without_a_meaning_is_counted_and_changes_nothing(event) -> None:
    rig = Rig()
    rig.join(0)
    assert rig.step(event) == []
    assert rig.core.stats().stale_events == 1
    assert rig.run(1).grant_epoch == 1


def test_ttl_beyond_all_time_does_not_run_out() -> None:
    rig = Rig()
    rig.join(0, ttl_ms=1e300)
    rig.run(1)
    assert rig.step(after_ms=1e9) == []


# ---- staleness -----------------------------------------------------------------------------------


def test_dropped_trajectory_makes_room_for_another() -> None:
    rig = Rig(max_staleness=0, batch_trajectories=1)
    rig.step(TrajectoryCreated(0, 0), TrajectoryCreated(1, 0), TrajectoryCreated(2, 0))
    rig.step(TurnReady(0, 0, 10, 20))
    # Neither one that waited nor one that had started is waited for.
    assert rig.step(TrajectoryEnded(1)) == [Drop(1, DropReason.GIVEN_UP)]
    assert rig.step(TrajectoryEnded(0)) == [Drop(0, DropReason.GIVEN_UP), Admit(2)]
    assert rig.core.stats().queued == 0


def test_a_turn_starts_when_its_job_takes_staler_weights() -> None:
    rig = Rig()
    rig.step(JobJoined(0, 4, 0, 1.0))
    rig.join(0, version=0)
    rig.step(VersionPublished(1))
    assert rig.ready(1) == []
    (start,) = rig.step(JobJoined(0, 4, 4, 1.0))
    assert start.trajectory == 1


def test_a_turn_starts_when_its_trajectory_is_used_a_version_sooner() -> None:
    rig = Rig(max_staleness=1, batch_trajectories=1)
    rig.join(0, version=0)
    (start,) = rig.ready(1)
    rig.step(ended(start, TurnEnd.FINISHED))
    rig.step(TrajectoryEnded(1))
    rig.step(VersionPublished(1))
    assert rig.ready(2) == []  # Used by version 3, two after what the worker has.
    (start,) = rig.step(Consumed(1))
    assert start.trajectory == 2


# ---- the queue -----------------------------------------------------------------------------------


def free(rig: Rig, *starts: Start) -> list[int]:
    """Finish turns and return whose turns took their places, in order."""
    actions = rig.step(*(ended(start, TurnEnd.FINISHED) for start in starts))
    return [action.trajectory for action in actions if isinstance(action, Start)]


def test_among_equals_the_longest_wait_is_over_first() -> None:
    rig = Rig()
    rig.join(0, seats=1)
    start = rig.run(0)
    rig.step(TrajectoryCreated(2, 0))
    rig.step(TrajectoryCreated(1, 0), after_ms=10)
    rig.step(TurnReady(1, 0, 10, 20), after_ms=10)
    rig.step(TurnReady(2, 0, 10, 20), after_ms=10)
    assert free(rig, start) == [1]


def test_turn_that_ran_comes_before_turns_that_did_not() -> None:
    rig = Rig()
    rig.join(0, seats=1)
    start = rig.run(0)
    rig.step(TrajectoryCreated(1, 0))
    rig.join(7, BORROWED, seats=1)
    young = rig.run(2)
    assert young.worker == 7
    rig.step(TurnReady(1, 0, 10, 20), after_ms=10)
    rig.step(ended(young, TurnEnd.INTERRUPTED), GrantChanged(7, 1, 0, 0.0))
    assert free(rig, start) == [2]


def test_small_turn_passes_one_that_does_not_fit() -> None:
    rig = Rig()
    rig.join(0, kv_tokens=100)
    rig.run(0)
    assert rig.ready(1, context=60) == []
    assert len(rig.ready(2)) == 1


def test_room_is_kept_for_a_turn_that_waited_too_long() -> None:
    rig = Rig(wait_max_ms=1000.0)
    rig.join(0, kv_tokens=100)
    start = rig.run(0)
    assert rig.ready(1, context=60) == []
    rig.step(after_ms=1000)
    assert rig.ready(2) == []  # it would fit
    assert free(rig, start) == [1]


def test_room_is_no_longer_kept_for_a_turn_that_is_given_up() -> None:
    rig = Rig(wait_max_ms=1000.0)
    rig.join(0, kv_tokens=100)
    rig.run(0)
    rig.ready(1, context=60)
    rig.step(after_ms=1000)
    assert rig.ready(2) == []
    *_, start = rig.step(TrajectoryEnded(1))
    assert start.trajectory == 2


def test_no_worker_is_kept_that_could_never_take_the_turn() -> None:
    rig = Rig(wait_max_ms=1000.0)
    rig.join(0, kv_tokens=100)
    assert rig.ready(1, context=200) == []
    rig.step(after_ms=1000)
    assert len(rig.ready(2)) == 1


def test_young_trajectory_waits_no_longer_than_the_limit() -> None:
    rig = Rig(wait_max_ms=1000.0)
    rig.join(0, seats=1)
    start = rig.run(0)
    rig.step(TrajectoryCreated(1, 0))
    rig.step(TrajectoryCreated(2, 0), after_ms=1)
    rig.step(TurnReady(2, 0, 10, 20))
    rig.step(TurnReady(1, 0, 10, 20), after_ms=1000)  # older, but 2 has waited
    assert free(rig, start) == [2]


# ---- sense ---------------------------------------------------------------------------------------


def test_reprefill_counts_what_was_computed_before() -> None:
    rig = Rig()
    rig.join(0, BORROWED)
    start = rig.run(1, context=100)
    rig.step(progress(start, 0, 8))
    rig.join(7)
    rig.step(WorkerLost(0))
    assert rig.core.stats().reprefill_tokens == 108
    assert rig.core.stats().turns_by_kind == {DEDICATED: 0, BORROWED: 0}
