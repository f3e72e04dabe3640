"""Trouble takes back what was lent, when and from whom a scenario says, and nothing else."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose_lab.sim.cluster.world import LendingTimeline, SimWorker
from rose_lab.sim.scenario.parts import (
    EngineCrashes,
    Flapping,
    RevokeAfterPrefill,
    RevokeAll,
    RevokeDuringUpdate,
    Stress,
)
from rose_lab.sim.scenario.trouble import troubled, without
from tests.lab.sim.worlds import TIMES, worker

HORIZON_MS = 600_000.0
ALL = LendingTimeline(np.zeros(1), np.ones(1), np.array([1000], dtype=np.int64))


def engine(domain: int, prefill: float = 1000.0) -> SimWorker:
    times = replace(TIMES, prefill_tokens_per_s=prefill)
    return replace(worker(0, ALL, times), domain=domain, start_up_ms=5000.0, update_ms=2000.0)


ENGINES = [engine(0), engine(0), engine(1), engine(2)]


def run(
    *stress: Stress, published_ms=(), engines=ENGINES, seed: int = 0
) -> tuple[LendingTimeline, ...]:
    return troubled(
        engines,
        stress,
        horizon_ms=HORIZON_MS,
        published_ms=np.array(published_ms, dtype=np.float64),
        random=np.random.default_rng(seed),
    )


def away(lending: LendingTimeline) -> list[tuple[float, float]]:
    """When nothing is lent, in seconds."""
    ends = np.append(lending.at_ms[1:], HORIZON_MS)
    gone = lending.kv_tokens == 0
    assert (lending.share[gone] == 0).all()
    assert (lending.share[~gone] == 1).all()
    return [
        (begin / 1000, end / 1000)
        for begin, end in zip(lending.at_ms[gone].tolist(), ends[gone].tolist(), strict=True)
    ]


@given(
    st.lists(st.tuples(st.floats(1, 50), st.floats(0, 1), st.integers(0, 9)), min_size=1),
    st.lists(st.tuples(st.floats(0, 300), st.floats(0, 90)), max_size=5),
    st.floats(0, 400),
)
def test_nothing_is_lent_in_spans_and_all_else_stays(rows, spans, when_ms) -> None:
    lending = LendingTimeline(
        at_ms=np.cumsum([0.0, *(row[0] for row in rows)])[:-1],
        share=np.array([row[1] for row in rows]),
        kv_tokens=np.array([row[2] for row in rows]),
    )
    gone = np.array([(at, at + lasts) for at, lasts in sorted(spans)]).reshape(-1, 2)
    after = without(lending, gone)
    assert after.at_ms[0] == 0
    assert (np.diff(after.at_ms) > 0).all()
    before, now = (
        (one.share[at], one.kv_tokens[at])
        for one in (lending, after)
        for at in (np.searchsorted(one.at_ms, when_ms, side="right") - 1,)
    )
    inside = ((gone[:, 0] <= when_ms) & (when_ms < gone[:, 1])).any()
    assert now == ((0.0, 0) if inside else before)


def test_everything_is_revoked_at_once() -> None:
    for one in run(RevokeAll(at_s=60, for_s=30)):
        assert away(one) == [(60, 90)]


def test_a_share_of_the_domains_is_hit_whole_domains_at_a_time() -> None:
    hit = [bool(away(one)) for one in run(RevokeAll(at_s=60, for_s=30, share=0.5))]
    assert hit == [True, True, True, False]  # two of three domains
    assert not any(away(one) for one in run(RevokeAll(at_s=60, for_s=30, share=0.0)))


def test_leases_flap_with_their_period() -> None:
    spans = away(run(Flapping(lent_s=20, away_s=10))[0])
    assert spans[:2] == [(20, 30), (50, 60)]
    assert spans[-1][1] <= HORIZON_MS / 1000
    assert sum(end - begin for begin, end in spans) == pytest.approx(200)


def test_updates_are_interrupted_where_the_run_before_had_them() -> None:
    stress = RevokeDuringUpdate(into=0.5, for_s=4)
    assert away(run(stress, published_ms=[50_000, 90_000])[0]) == [(51, 55), (91, 95)]
    assert away(run(stress)[0]) == []


def test_a_lease_ends_when_its_long_prompt_was_computed() -> None:
    """5 s to start, 30,000 tokens at 1,000 or 3,000 a second, then 10 s away."""
    stress = RevokeAfterPrefill(prompt_tokens=30_000, away_s=10)
    slow, fast = run(stress, engines=[engine(0), engine(0, prefill=3000.0)])
    assert away(slow)[:2] == [(35, 45), (80, 90)]
    assert away(fast)[:2] == [(15, 25), (40, 50)]


def test_engines_of_a_domain_crash_together_and_others_at_other_times() -> None:
    first, second, third, _ = run(EngineCrashes(every_s=60, down_s=5))
    assert away(first) == away(second) != away(third)
    for one in (first, third):
        assert {round(end - begin, 6) for begin, end in away(one)} <= {5.0}
    many = [len(away(run(EngineCrashes(every_s=60, down_s=5), seed=seed)[0])) for seed in range(40)]
    assert np.mean(many) == pytest.approx(600 / 65, rel=0.15)


def test_troubles_add_up() -> None:
    one = run(RevokeAll(at_s=10, for_s=5), RevokeAll(at_s=30, for_s=5))[0]
    assert away(one) == [(10, 15), (30, 35)]
