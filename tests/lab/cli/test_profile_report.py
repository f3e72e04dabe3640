"""The numbers of a profile, and its table."""

import io
import json
import math

import pytest
from rich.console import Console

from rose.slo import SLO
from rose.units import GIB, MIB
from rose_lab.broker import Observation, ServingDevice
from rose_lab.cli.profile_report import (
    Measured,
    ProfileAsked,
    lent_row,
    print_profile,
    profile_report,
)

SLOS = (SLO(200, 25), SLO(500, 50))
DEVICE = ServingDevice("device", 40 * GIB, 4 * GIB, 32 * MIB, SLOS[0])


def seen(at_s, *, kv=0.2, ttft=100.0, tpot=20.0, running=4):
    return Observation(
        device=DEVICE,
        at_ms=at_s * 1e3,
        kv_used=kv,
        running=running,
        waiting=0,
        ttft_ms_p99=ttft,
        tpot_ms_p99=tpot,
    )


def measured(observations=None, *, every_s=5.0, failures=(), is_complete=True):
    """An hour of calm, but for a minute of slow first tokens in the middle."""
    if observations is None:
        observations = [
            seen(at_s, ttft=300.0 if 1800 <= at_s < 1860 else 100.0) for at_s in range(0, 3605, 5)
        ]
    asked = ProfileAsked("made [up]", 3600, every_s, SLOS, None, None, 4 * GIB)
    return Measured(
        asked, DEVICE, "vLLM", "a model", list(observations), list(failures), is_complete
    )


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
    assert loose["longest_lend_s"] == pytest.approx(3600 - 10)  # calm is seen first
    assert strict["longest_lend_s"] == pytest.approx(1800 - 10)
    assert strict["lent_gib_mean"] < loose["lent_gib_mean"] < most
    assert strict["reasons"][0]["why"] == "the tail of first tokens came too close to its target"


def test_readings_that_failed_lend_nothing_new_and_are_counted():
    failures = tuple((at_s * 1e3, "http://localhost answers with status 500") for at_s in (1, 2, 3))
    record = measured(observations=(seen(0), seen(60), seen(65)), failures=failures)
    report = report_of(record)
    assert [one["at_s"] for one in report["failures"]] == [1, 2, 3]
    assert all(row["lent_gib_peak"] == 0 for row in report["rows"])
    assert "3 readings failed, the last because http://localhost answers" in printed(report)


def test_loans_outlive_readings_that_come_seldom():
    rare = measured([seen(at_s) for at_s in range(0, 3601, 120)], every_s=120)
    row = lent_row(rare, SLOS[1])
    assert row["revocations"] == 0
    assert row["lent_gib_peak"] > 22  # and so they grow


def test_json_is_strict_and_says_the_same_whatever_was_measured():
    report = report_of()
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    nothing = report_of(measured([], is_complete=False))
    assert set(nothing) == set(report)
    assert nothing["verdict"] == "Stopped early: nothing could have been lent."
    endless = report_of(measured(observations=(seen(0, ttft=math.inf), seen(5, ttft=math.inf))))
    assert endless["series"]["ttft_ms_p99"] == [None, None]
    assert json.dumps(endless, allow_nan=False)


def test_compute_is_what_readings_leave_of_the_target_per_token():
    strict, loose = report_of()["rows"]
    assert loose["compute_share"] == pytest.approx(1 - 20 / 50)
    late_share = 12 / 721
    assert strict["met_alone"] == pytest.approx(1 - late_share)
    assert strict["compute_share"] == pytest.approx((1 - 20 / 25) * (1 - late_share))
    idle = report_of(measured([seen(0, running=0), seen(5, ttft=None, tpot=None)]))["rows"][0]
    assert (idle["compute_share"], idle["met_alone"]) == (1.0, 1.0)  # the second does not say


def test_the_verdict_says_the_best_row_or_why_there_is_none():
    assert report_of()["verdict"] == (
        f"60% of the compute and {report_of()['rows'][1]['lent_gib_mean']:.1f} GiB of KV on "
        f"average could have been lent under targets of 500 ms to the first token and 50 ms for "
        f"each later one."
    )
    late = measured([seen(at_s, ttft=900.0) for at_s in range(0, 100, 5)])
    assert report_of(late)["verdict"] == (
        "nothing could have been lent: the tail of first tokens came too close to its target."
    )


@pytest.mark.parametrize("width", [60])
def test_no_cell_is_cut(width):
    out = printed(report_of(), width)
    assert "…" not in out
    assert "200/25" in out
    assert "made [up]: 721 readings in 60.0 min; the KV pool has 40.0 GiB" in out
