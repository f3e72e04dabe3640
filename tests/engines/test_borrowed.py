"""The borrower as a worker: granted, squeezed, revoked, parked and committed to, in any order."""

import threading
from collections.abc import Iterator
from itertools import groupby

import numpy as np
import pytest

from rose.clock import BootClock
from rose.engines.transformers import Model, Sampling
from rose.errors import StepAborted
from rose.scheduler.worker import GrantChanged, TurnEnd, WorkerLost
from rose.transfer.receiving.commit import CommitState
from tests.engines.borrowed import TTL_MS, Borrowed
from tests.engines.intact import is_intact
from tests.engines.pair import WAIT_S
from tests.engines.policies import TileCommit, generate_alone, later
from tests.engines.recorder import turn
from tests.waiting import wait_for

PROMPTS = [[(13 * place + 7 * one) % 128 for place in range(30 + one)] for one in range(6)]


@pytest.fixture
def borrowed(models: tuple[Model, Model], request: pytest.FixtureRequest) -> Iterator[Borrowed]:
    """Give a borrower; where it is parametrised, its leases run out after so many ms."""
    made = Borrowed(models[0], ttl_ms=getattr(request, "param", TTL_MS))
    with made.pair:
        yield made
        made.pair.rollout.stop()
        assert made.received.faults == []
        assert len(made.received.threads) <= 1
        assert made.pair.device.gave_back is None
        made.pair.device.arbiter.check_invariants()


def truth(model: Model, trajectory: int, tokens: int) -> list[int]:
    return generate_alone(model, PROMPTS[trajectory], tokens, Sampling(1000 + trajectory, 1.0))


def has_renewals(leases: list[GrantChanged], count: int) -> bool:
    """Return whether one lease was reported that often in a row, as none is that ran out."""
    reports = groupby((lease.grant_epoch, lease.kv_tokens > 0) for lease in leases)
    return any(is_live and len(list(group)) >= count for (_, is_live), group in reports)


# ---- leases --------------------------------------------------------------------------------------


def test_borrowed_worker_takes_turns_between_grant_and_revoke_only(borrowed: Borrowed) -> None:
    borrowed.worker.start_turn(turn(0, PROMPTS[0], 5, grant_epoch=0))
    borrowed.received.wait_ended(0)
    assert borrowed.received.ends(0) == [TurnEnd.INTERRUPTED]
    epoch = borrowed.grant()
    assert epoch == 1
    lease = borrowed.received.leases[-1]
    slab_tokens = borrowed.lane.kv.blocks_per_slab * borrowed.lane.kv.geometry.block_tokens
    assert lease.kv_tokens == borrowed.lane.slabs_max() * slab_tokens
    assert lease.ttl_ms == TTL_MS
    borrowed.worker.start_turn(turn(1, PROMPTS[1], 12))
    borrowed.received.wait_ended(1)
    assert borrowed.received.ends(1) == [TurnEnd.FINISHED]
    assert borrowed.received.tokens(1) == truth(borrowed.model, 1, 12)


def test_revoked_worker_gives_every_token_back_and_the_next_grant_is_a_new_lease(
    borrowed: Borrowed,
) -> None:
    borrowed.grant()
    for trajectory in range(3):
        borrowed.worker.start_turn(turn(trajectory, PROMPTS[trajectory], 400))
    for trajectory in range(3):
        borrowed.received.wait_tokens(trajectory, 4)
    borrowed.worker.revoke()
    borrowed.received.wait_lease(lambda lease: lease.kv_tokens == 0)
    assert all(borrowed.received.ends(one) == [TurnEnd.INTERRUPTED] for one in range(3))
    wait_for(lambda: not borrowed.processor.scheduler.active_requests)
    cache = borrowed.processor.cache
    assert all(not one.block_table for one in cache.cache_allocators.values())
    said = borrowed.received.tokens(1)
    borrowed.worker.start_turn(turn(1, PROMPTS[1] + said, 5, first_token=len(said)))
    borrowed.received.wait_ended(1, times=2)
    assert borrowed.received.tokens(1) == said  # that lease is over
    assert borrowed.grant() == 2


@pytest.mark.parametrize("borrowed", [600.0], indirect=True)
def test_lease_is_renewed_while_the_gate_is_closed_and_a_frozen_loop_loses_it(
    borrowed: Borrowed,
) -> None:
    borrowed.grant()
    borrowed.worker.start_turn(turn(0, PROMPTS[0], 900))
    borrowed.received.wait_tokens(0, 2)
    lane = borrowed.pair.serving_lane
    lane.arrived("a", prompt_tokens=8)
    wait_for(lambda: not borrowed.pair.device.gate.is_running())
    count = len(borrowed.received.leases)
    borrowed.received.wait_for(
        lambda: has_renewals(borrowed.received.leases[count:], 3), "renewals"
    )
    lane.finished("a")
    # Frozen: inside a slice that does not end.
    commit = watched(borrowed, hold_at=1)
    count, epoch = len(borrowed.received.leases), borrowed.epoch
    BootClock().sleep(0.7)  # more than its TTL
    assert len(borrowed.received.leases) == count
    commit.go_on.set()
    # Whoever counts has ended it, and hears no renewal of a dead epoch: turns come back.
    borrowed.received.wait_lease(
        lambda lease: lease.grant_epoch == epoch + 1 and lease.kv_tokens > 0
    )
    dead = [lease.kv_tokens for lease in borrowed.received.leases if lease.grant_epoch == epoch]
    assert dead[-1] == 0
    borrowed.received.wait_ended(0)


# ---- serving takes slabs -------------------------------------------------------------------------


def test_turns_in_slabs_that_serving_took_come_back_and_the_lease_shrinks_then_grows(
    borrowed: Borrowed,
) -> None:
    borrowed.grant()
    full = borrowed.received.leases[-1].kv_tokens
    # More than one slab, so that something is left.
    for trajectory in range(5):
        borrowed.worker.start_turn(turn(trajectory, PROMPTS[trajectory], 120))
    for trajectory in range(5):
        borrowed.received.wait_tokens(trajectory, 30)
    wait_for(lambda: borrowed.held > 1)
    borrowed.take(1)
    small = borrowed.received.wait_lease(lambda lease: lease.kv_tokens < full)
    assert (small.grant_epoch, small.kv_tokens > 0) == (1, True)
    again = borrowed.received.events.index(small)
    borrowed.received.wait_for(
        lambda: any(
            getattr(event, "kv_tokens", 0) == full for event in borrowed.received.events[again:]
        ),
        "growth",
    )
    gone = [one for one in range(5) if borrowed.received.ends(one) == [TurnEnd.INTERRUPTED]]
    assert 0 < len(gone) < 5
    # They were reported before the lease shrank, and the engine has forgotten them.
    assert all(
        borrowed.received.events.index(borrowed.received.outputs(one)[-1]) < again for one in gone
    )
    for one in gone:
        said = borrowed.received.tokens(one)
        rest = 120 - len(said)
        borrowed.worker.start_turn(turn(one, PROMPTS[one] + said, rest, first_token=len(said)))
    for one in range(5):
        borrowed.received.wait_ended(one, times=2 if one in gone else 1)
        assert len(borrowed.received.tokens(one)) == 120
    stayed = next(one for one in range(5) if one not in gone)
    for one in (gone[0], stayed):
        assert borrowed.received.tokens(one) == truth(borrowed.model, one, 120)


def test_revocation_reaches_a_worker_whose_step_is_parked(borrowed: Borrowed) -> None:
    borrowed.grant()
    borrowed.worker.start_turn(turn(0, PROMPTS[0], 900))
    borrowed.received.wait_tokens(0, 3)
    lane = borrowed.pair.serving_lane
    lane.arrived("a", prompt_tokens=8)
    wait_for(lambda: not borrowed.pair.device.gate.is_running())
    borrowed.worker.revoke()
    borrowed.received.wait_lease(lambda lease: lease.kv_tokens == 0)
    assert borrowed.received.ends(0) == [TurnEnd.INTERRUPTED]
    assert not borrowed.pair.device.gate.is_open()
    said = borrowed.received.tokens(0)
    lane.finished("a")
    borrowed.grant()
    assert borrowed.received.tokens(0) == said  # the step that was parked says nothing more


def test_borrower_parked_by_serving_can_be_stopped_and_loses_no_token(borrowed: Borrowed) -> None:
    borrowed.grant()
    borrowed.worker.start_turn(turn(0, PROMPTS[0], 900))
    borrowed.received.wait_tokens(0, 3)
    lane = borrowed.pair.serving_lane
    lane.arrived("a", prompt_tokens=8)
    wait_for(lambda: not borrowed.pair.device.gate.is_running())
    borrowed.pair.rollout.stop()
    assert not borrowed.pair.device.gate.is_open()
    assert not borrowed.pair.device.gate.is_in_step()
    said = borrowed.received.tokens(0)
    assert borrowed.received.ends(0) == [TurnEnd.INTERRUPTED]
    assert said == truth(borrowed.model, 0, len(said))
    assert len(borrowed.received.of(WorkerLost)) == 1
    lane.finished("a")


def test_worker_is_lost_once_when_the_device_gave_back_even_if_idle(
    models: tuple[Model, Model],
) -> None:
    for is_idle in (True, False):
        made = Borrowed(models[0])
        with made.pair:
            made.grant()
            if not is_idle:
                made.worker.start_turn(turn(0, PROMPTS[0], 900))
                made.received.wait_tokens(0, 3)
            made.pair.device.safety.report(RuntimeError("planted"))
            made.received.wait_for(lambda received=made.received: received.of(WorkerLost), "loss")
        assert len(made.received.of(WorkerLost)) == 1
        assert made.received.faults == []
        if not is_idle:
            assert made.received.ends(0) == [TurnEnd.INTERRUPTED]


# ---- commits -------------------------------------------------------------------------------------


class Watched(TileCommit):
    """A commit that stops in its `hold_at`-th slice until it is let go, and counts the others."""

    def __init__(self, *arguments, hold_at: int, **settings) -> None:
        super().__init__(*arguments, **settings)
        self.hold_at = hold_at
        self.is_holding = threading.Event()
        self.go_on = threading.Event()

    def step(self) -> bool:
        if self.slices + 1 == self.hold_at:
            self.is_holding.set()
            assert self.go_on.wait(WAIT_S)
        return super().step()


def watched(borrowed: Borrowed, *, hold_at: int, **settings) -> Watched:
    fresh = later(borrowed.weights.row, seed=hold_at)
    commit = Watched(borrowed.weights, fresh, hold_at=hold_at, **settings)
    borrowed.worker.commit(commit, 1)
    assert commit.is_holding.wait(WAIT_S)
    return commit


def test_serving_waits_for_the_slice_that_runs_and_for_no_other(borrowed: Borrowed) -> None:
    commit = watched(borrowed, hold_at=3)
    lane, gate = borrowed.pair.serving_lane, borrowed.pair.device.gate
    lane.arrived("a", prompt_tokens=8)
    assert gate.is_running()  # the third slice
    commit.go_on.set()
    wait_for(lambda: not gate.is_running())
    assert commit.slices == 3
    with lane.step():
        assert not gate.is_running()
        assert commit.slices == 3
    assert commit.state is CommitState.APPLYING
    lane.finished("a")
    borrowed.received.wait_for(lambda: borrowed.received.commits, "commit")
    assert commit.slices == borrowed.weights.tiles > 4
    assert is_intact(borrowed.weights)


def test_slabs_come_home_at_once_while_a_commit_is_half_done(borrowed: Borrowed) -> None:
    borrowed.grant()
    for one in range(2):
        borrowed.worker.start_turn(turn(one, PROMPTS[one], 900))
    for one in range(2):
        borrowed.received.wait_tokens(one, 3)
    commit = watched(borrowed, hold_at=4)
    assert borrowed.held > 0
    borrowed.take(borrowed.held)
    # In the call: no slice holds a lock or a pin that serving would wait for.
    assert borrowed.held == 0
    assert borrowed.pair.device.arbiter.snapshot().quarantined == 0
    assert commit.slices == 3
    commit.go_on.set()
    borrowed.received.wait_for(lambda: borrowed.received.commits, "commit")
    borrowed.received.wait_ended(0, 1)
    (event,) = borrowed.received.commits
    assert (event.version, event.is_match) == (1, True)
    assert [borrowed.received.ends(one) for one in range(2)] == [[TurnEnd.INTERRUPTED]] * 2
    assert is_intact(borrowed.weights)


def test_commit_goes_on_in_the_next_quantum_after_an_abort(
    borrowed: Borrowed, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock, quanta = borrowed.lane.gate, []

    def gate() -> None:
        if len(quanta) < 3:
            quanta.append(1)
            raise StepAborted("planted")
        stock()

    monkeypatch.setattr(borrowed.lane, "gate", gate)
    base = borrowed.weights.row.copy()
    commit = borrowed.commit(1)
    borrowed.received.wait_for(lambda: borrowed.received.commits, "commit")
    assert len(quanta) == 3
    assert commit.slices == borrowed.weights.tiles
    assert np.array_equal(borrowed.weights.row, later(base, seed=1))
    assert not borrowed.pair.device.gate.is_in_step()
