"""The numbers of a profile, and its table."""

import io
import json
import math

import pytest
from rich.console import Console

from rose.cli.profile_report import (
    Compute,
    Measured,
    Pool,
    lent_row,
    poisson_most,
    print_profile,
    profile_report,
)
from rose.errors import InvalidArgument
from rose.scheduler.broker import Observation
from rose.slo import SLO
from rose.units import GIB, MIB

POOL = Pool(kv_bytes=40 * GIB, reserve_bytes=4 * GIB, slab_bytes=32 * MIB)
SLOS = (SLO(200, 25), SLO(500, 50))


def seen(at_s, *, kv=0.2, ttft=100.0, tpot=20.0, running=4):
    return Observation(
        device=POOL.device(SLOS[0]),
        at_ms=at_s * 1e3,
        kv_used=kv,
        running=running,
        waiting=0,
        ttft_ms_p99=ttft,
        tpot_ms_p99=tpot,
    )


def measured(observations=None, **changes):
    """An hour of calm, but for a minute of slow first tokens in the middle."""
    if observations is None:
        observations = tuple(
            seen(at_s, ttft=300.0 if 1800 <= at_s < 1860 else 100.0) for at_s in range(0, 3605, 5)
        )
    values = {
        "source": "made [up]",
        "kind": "trace",
        "how": "By hand.",
        "pool": POOL,
        "observations": observations,
        "compute": (Compute(0.4, 0.9, 0.001), Compute(0.7, 1.0, 0.0)),
        "slos": SLOS,
        "every_ms": 5e3,
        "failures": (),
        "settings": {"seed": 0},
        "is_complete": True,
        **changes,
    }
    return Measured(**values)


def report_of(record=None):
    return profile_report(record or measured(), command="rose profile x", machine={"cores": 2})


def printed(report, width=100):
    out = io.StringIO()
    print_profile(report, Console(file=out, width=width))
    return out.getvalue()


def test_what_is_lent_is_what_the_broker_lends_and_pressure_is_a_revocation():
    strict, loose = report_of()["rows"]
    most = 0.8 * (0.8 * 40 - 4)
    assert strict["lent_gib_peak"] == pytest.approx(most, abs=0.1)
    assert (strict["revocations"], loose["revocations"]) == (1, 0)
    assert strict["revocations_per_hour"] == pytest.approx(1.0)
    assert strict["revocations_per_hour_most"] == pytest.approx(4.744, abs=0.01)
    assert loose["revocations_per_hour_most"] == pytest.approx(math.log(20))
    assert loose["longest_lend_s"] == pytest.approx(3600 - 10)  # calm is seen first
    assert strict["longest_lend_s"] == pytest.approx(1800 - 10)
    assert strict["lent_gib_mean"] < loose["lent_gib_mean"] < most
    assert strict["reasons"][0]["why"] == "the tail of first tokens came too close to its target"


def test_numbers_of_a_row_follow_from_its_series():
    for row in report_of()["rows"]:
        held = [(b[0] - a[0], a[1]) for a, b in zip(row["lent"], row["lent"][1:], strict=False)]
        total_s = sum(s for s, _ in held)
        mean = sum(s * gib for s, gib in held) / total_s
        assert row["lent_gib_mean"] == pytest.approx(mean)
        assert row["lent_share"] == pytest.approx(sum(s for s, gib in held if gib) / total_s)
        assert row["lent_gib_peak"] == max(gib for _, gib in row["lent"])


@pytest.mark.parametrize("count", [0, 1, 5, 40])
def test_the_bound_of_revocations_is_exceeded_in_one_case_of_twenty(count):
    mean = poisson_most(count)
    at_most = sum(
        math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(count + 1)
    )
    assert at_most == pytest.approx(0.05, abs=1e-6)
    if count == 0:
        assert mean == pytest.approx(math.log(20))


def test_readings_that_failed_lend_nothing_new_and_are_counted():
    failures = tuple((at_s * 1e3, "http://localhost answers with status 500") for at_s in (1, 2, 3))
    record = measured(observations=(seen(0), seen(60), seen(65)), failures=failures)
    report = report_of(record)
    assert [one["at_s"] for one in report["failures"]] == [1, 2, 3]
    assert all(row["lent_gib_peak"] == 0 for row in report["rows"])
    assert "3 readings failed, the last because http://localhost answers" in printed(report)


def test_loans_outlive_readings_that_come_seldom():
    rare = measured(observations=tuple(seen(at_s) for at_s in range(0, 3601, 120)), every_ms=120e3)
    row = lent_row(rare, SLOS[1], Compute(None, None))
    assert row["revocations"] == 0
    assert row["lent_gib_peak"] > 22  # and so they grow


def test_json_is_strict_and_says_the_same_whatever_was_measured():
    report = report_of()
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    nothing = report_of(measured(observations=(), compute=(), slos=(), is_complete=False))
    assert set(nothing) == set(report)
    assert nothing["verdict"] == "Stopped early: nothing could have been lent."
    endless = report_of(measured(observations=(seen(0, ttft=math.inf), seen(5, ttft=math.inf))))
    assert endless["series"]["ttft_ms_p99"] == [None, None]
    assert json.dumps(endless, allow_nan=False)


def test_the_verdict_says_the_best_row_or_why_there_is_none():
    assert report_of()["verdict"] == (
        f"70% of the compute and {report_of()['rows'][1]['lent_gib_mean']:.1f} GiB of KV on "
        f"average could have been lent under targets of 500 ms to the first token and 50 ms for "
        f"each later one."
    )
    late = measured(observations=tuple(seen(at_s, ttft=900.0) for at_s in range(0, 100, 5)))
    assert report_of(late)["verdict"] == (
        "nothing could have been lent: the tail of first tokens came too close to its target."
    )


@pytest.mark.parametrize("width", [60, 100, 200])
def test_no_cell_is_cut(width):
    out = printed(report_of(), width)
    assert "…" not in out
    assert "200/25" in out
    assert "made [up]: 721 readings in 60.0 min; a KV pool of 40.0 GiB" in out


def test_a_pool_that_is_all_reserve_is_refused():

    with pytest.raises(InvalidArgument, match=r"leaves nothing of a KV pool of 4\.0 GiB"):
        Pool(4 * GIB, 4 * GIB, 1).device(SLOS[0])
