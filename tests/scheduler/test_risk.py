"""Revocations: their rate, holds after flapping, limits of exposure, and how turns come back."""

import math
import random

import hypothesis.strategies as st
import pytest
from hypothesis import given

from rose.scheduler.events import (
    Action,
    GrantChanged,
    Start,
    WorkerJoined,
    WorkerLost,
)
from rose.scheduler.worker import TurnEnd
from tests.reference.hazard import PlainRate, hazard_per_s
from tests.scheduler.rig import BORROWED, DEDICATED, Rig, ended, progress

PRIOR_PER_S = 0.02
# Largest deviation of a shown hazard: that of the worker times that of its domain.
MATERIAL = (1 + 1 / 16) ** 2


def starts(actions: list[Action]) -> dict[int, int]:
    """Return the worker of each started trajectory."""
    return {one.trajectory: one.worker for one in actions if isinstance(one, Start)}


# ---- hazard


@given(seed=st.integers(0, 2**32 - 1))
def test_hazards_are_the_plain_estimate_of_the_observations(seed: int) -> None:
    rng = random.Random(seed)
    prior_s = rng.choice([5.0, 60.0, 1000.0])
    rig = Rig(hazard_per_s=PRIOR_PER_S, hazard_prior_s=prior_s, hazard_window_s=1e6)
    domain_of = {number: rng.randint(0, 1) for number in range(4)}
    epochs, live = dict.fromkeys(domain_of, 1), set(domain_of)
    workers = {number: PlainRate() for number in domain_of}
    domains = {domain: PlainRate() for domain in (0, 1)}
    for number, domain in domain_of.items():
        rig.join(number, BORROWED, domain=domain)

    def count(number: int) -> None:
        workers[number].revocations += 1
        domains[domain_of[number]].revocations += 1

    for _ in range(60):
        passed_s = rng.choice([0.0, 0.5, 3.0, 20.0])
        rig.step(after_ms=1000 * passed_s)
        for number in live:
            workers[number].exposed_s += passed_s
            domains[domain_of[number]].exposed_s += passed_s
        number = rng.choice(list(domain_of))
        what = rng.choice(["renew", "revoke", "shrink", "grow", "supersede"])
        if number not in live:
            epochs[number] += 1
            live.add(number)
            rig.step(GrantChanged(number, epochs[number], 10_000, 0.0))
        elif what == "revoke":
            live.remove(number)
            count(number)
            rig.step(GrantChanged(number, epochs[number], 0, 0.0))
        elif what == "supersede":
            epochs[number] += 1
            count(number)
            rig.step(GrantChanged(number, epochs[number], 10_000, 0.0))
        elif what == "shrink":
            count(number)
            rig.step(GrantChanged(number, epochs[number], 4000, 0.0))
            rig.step(GrantChanged(number, epochs[number], 10_000, 0.0))
        else:
            rig.step(GrantChanged(number, epochs[number], 10_000, 0.0))
        for one in live:  # an estimate is updated when the worker renews
            rig.step(GrantChanged(one, epochs[one], 10_000, 0.0))
        shown = rig.core.stats().hazards_per_s
        for one in live:
            plain = hazard_per_s(
                workers[one], domains[domain_of[one]], prior_per_s=PRIOR_PER_S, prior_s=prior_s
            )
            assert plain / MATERIAL <= shown[one] <= plain * MATERIAL


def test_a_lost_or_expired_grant_counts_as_revoked() -> None:
    rig = Rig(hazard_per_s=PRIOR_PER_S, hazard_prior_s=10.0)
    rig.join(0, BORROWED, ttl_ms=50.0)
    rig.join(1, BORROWED)
    rig.join(2, BORROWED, domain=1)
    before = rig.core.stats().hazards_per_s[2]
    rig.step(after_ms=60)
    rig.step(WorkerLost(1))
    rig.join(1, BORROWED, epoch=2)
    rig.step(GrantChanged(0, 2, 10_000, 0.0))
    shown = rig.core.stats().hazards_per_s
    plain = PlainRate(2, 0.12).per_s(PRIOR_PER_S, 10.0)
    both = PlainRate(1, 0.06).per_s(plain, 10.0)
    assert shown[0] == pytest.approx(both, rel=0.1)
    assert shown[1] == pytest.approx(both, rel=0.1)
    assert shown[2] == before


def test_a_recall_by_the_scheduler_is_no_revocation() -> None:
    rig = Rig(hazard_per_s=PRIOR_PER_S, hazard_prior_s=10.0, stall_ms=100.0)
    rig.join(0, BORROWED)
    rig.run(1)
    rig.join(1, BORROWED, domain=1)
    assert rig.step(after_ms=1000) != []  # the stalled turn is recalled
    assert rig.core.stats().recalls == 1
    rig.step(GrantChanged(0, 1, 10_000, 0.0))
    assert rig.core.stats().hazards_per_s[0] <= PRIOR_PER_S


def test_small_changes_of_a_grant_are_no_revocation() -> None:
    rig = Rig(hazard_per_s=PRIOR_PER_S, hazard_prior_s=10.0)
    rig.join(0, BORROWED, kv_tokens=10_000)
    rig.run(1)
    for kv_tokens in (9000, 6000, 10_000, 5000):
        rig.step(GrantChanged(0, 1, kv_tokens, 0.0))
    assert rig.core.stats().hazards_per_s[0] == PRIOR_PER_S
    rig.step(GrantChanged(0, 1, 20, 0.0))  # the running turn does not fit
    assert rig.core.stats().hazards_per_s[0] > PRIOR_PER_S


# ---- flapping


def flap(rig: Rig, worker: int, epoch: int) -> None:
    rig.step(GrantChanged(worker, epoch, 0, 0.0))
    rig.step(GrantChanged(worker, epoch + 1, 10_000, 0.0))


def test_a_hold_doubles_with_each_revocation_up_to_the_maximum() -> None:
    rig = Rig(hold_min_ms=100.0, hold_max_ms=350.0, flap_window_ms=1000.0)
    rig.join(0, BORROWED)
    held_ms = []
    for epoch in range(1, 7):
        flap(rig, 0, epoch)
        actions, ms = rig.ready(epoch), 0
        while not starts(actions):
            actions, ms = rig.step(after_ms=10), ms + 10
        held_ms.append(ms)
        (start,) = (one for one in actions if isinstance(one, Start))
        rig.step(progress(start, 0, 20), ended(start, TurnEnd.FINISHED, 20))
    assert held_ms == [0, 100, 200, 350, 350, 350]


def test_revocations_far_apart_cause_no_hold() -> None:
    rig = Rig(hold_min_ms=100.0, flap_window_ms=1000.0)
    rig.join(0, BORROWED)
    for epoch in range(1, 5):
        flap(rig, 0, epoch)
        rig.step(after_ms=1001)
    flap(rig, 0, 5)
    assert rig.run(1).worker == 0


# ---- exposure


def exposed(rig: Rig, context: int, count: int, first: int = 0) -> list[int | None]:
    """Return the worker of each of `count` turns; None for a turn that does not start."""
    answers = []
    for trajectory in range(first, first + count):
        where = starts(rig.ready(trajectory, context=context))
        answers.append(where.get(trajectory))
    return answers


def test_a_domain_gets_at_most_what_its_survivors_can_recompute_in_time() -> None:
    # The survivor computes 1000 tokens a second, and has no seat: 0.5 s are 500 tokens.
    rig = Rig(exposure_max_s=0.5)
    for number in range(2):
        rig.join(number, BORROWED, kv_tokens=10_000)
    rig.join(2, DEDICATED, kv_tokens=1, domain=1)
    placed = exposed(rig, 100, 8)
    assert [where is not None for where in placed] == [True] * 5 + [False] * 3
    assert rig.core.stats().exposure_s == pytest.approx(0.5)


def test_generated_tokens_are_exposed_too() -> None:
    rig = Rig(exposure_max_s=0.5)
    rig.join(0, BORROWED)
    rig.join(1, DEDICATED, kv_tokens=1, domain=1)
    start = rig.run(0, context=400, max_new=200)
    rig.step(progress(start, 0, 50))
    assert rig.core.stats().exposure_s == pytest.approx(0.45)
    assert exposed(rig, 60, 1, first=1) == [None]
    assert starts(rig.step(ended(start, TurnEnd.FINISHED, 50))) == {1: 0}


def test_a_turn_above_the_limit_may_run_in_an_empty_domain() -> None:
    rig = Rig(exposure_max_s=0.1)
    rig.join(0, BORROWED)
    rig.join(1, DEDICATED, kv_tokens=1, domain=1)
    assert exposed(rig, 5000, 2) == [0, None]


def test_without_survivors_there_is_no_limit() -> None:
    rig = Rig(exposure_max_s=0.1)
    for number in range(2):
        rig.join(number, BORROWED)
    assert None not in exposed(rig, 500, 8)
    assert rig.core.stats().exposure_s == 0


def test_workers_of_another_job_are_not_survivors() -> None:
    rig = Rig(exposure_max_s=0.1)
    rig.join(0, BORROWED)
    rig.join(1, DEDICATED, domain=1, job=1)
    assert None not in exposed(rig, 500, 4)


# ---- restarts


def test_revoked_prompts_restart_a_few_at_a_time() -> None:
    rig = Rig(burst_prefill_tokens=250, recall_grace_ms=0.0)
    rig.join(0, BORROWED)
    for trajectory in range(6):
        rig.run(trajectory, context=100)
    rig.join(1, DEDICATED)
    again = rig.step(GrantChanged(0, 1, 0, 0.0))
    moved = [one for one in again if isinstance(one, Start)]
    assert len(moved) == 2
    more = rig.step(progress(moved[0], 0, 1))  # one prompt is computed, so the next restarts
    assert len(starts(more)) == 1
    assert rig.core.stats().queued == 3


def test_fresh_turns_are_not_paced() -> None:
    rig = Rig(burst_prefill_tokens=250)
    rig.join(0)
    for trajectory in range(6):
        rig.run(trajectory, context=100)
    assert rig.core.stats().running == 6


# ---- bound of the recovery


def test_dedicated_workers_recompute_all_prompts() -> None:
    rig = Rig(recall_grace_ms=100.0)
    rig.join(0, BORROWED)
    assert rig.core.stats().recovery_bound_s == 0
    rig.run(0, context=500)
    assert rig.core.stats().recovery_bound_s == math.inf
    rig.join(1, DEDICATED)
    # The grace period, 500 tokens at 1000 per second, and again 500 for the longest prompt.
    assert rig.core.stats().recovery_bound_s == pytest.approx(0.1 + 0.5 + 0.5)


def test_without_free_seats_the_recovery_takes_several_rounds() -> None:
    rig = Rig(recall_grace_ms=100.0)
    rig.join(0, BORROWED, seats=8)
    for trajectory in range(5):
        rig.run(trajectory, context=100, max_new=100)
    slow = WorkerJoined(
        *(1, DEDICATED, 0, 2, 1000.0, 10.0, 1.0, 0), decode_ms_per_context_token=0.001
    )
    rig.step(slow, GrantChanged(1, 1, 10_000, 0.0))
    prompts_s = 0.1 + 0.5 + 0.1
    # A step has two turns and all the context that fits.
    rounds, step_s = 1 + math.ceil(5 / 2), 0.010 + 2 * 0.001 + 0.010
    assert rig.core.stats().recovery_bound_s == pytest.approx(prompts_s + rounds * 100 * step_s)
