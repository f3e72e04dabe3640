import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.errors import InvalidArgument
from rose.traces import Trace, describe, generate
from rose.traces.statistics import counts_per_bin


def make(arrivals, span_s=None):
    lengths = np.arange(1, len(arrivals) + 1)
    return Trace(np.array(arrivals), lengths, 10 * lengths, name="t", span_s=span_s)


def test_numbers_of_a_trace_that_is_counted_by_hand():
    # Seconds hold 3, 0, 1, 0 requests; the half second at the end is no whole one.
    statistics = describe(make([0.0, 0.5, 0.9, 2.0, 4.2], span_s=4.5))
    assert (statistics.requests, statistics.duration_s) == (5, 4.5)
    assert statistics.mean_rate_rps == pytest.approx(5 / 4.5)
    per_second, per_minute = statistics.rates
    assert (per_second.p50, per_second.max) == (0.5, 3.0)
    assert per_second.p99 == pytest.approx(2.94)
    assert per_minute is None
    # Variance 1.5 of a mean of 1.
    assert statistics.dispersion == (pytest.approx(1.5), None, None)
    assert (statistics.prompt.mean, statistics.prompt.p50, statistics.prompt.max) == (3.0, 3.0, 5)
    assert (statistics.output.p90, statistics.output.max) == (pytest.approx(46.0), 50)


def test_minutes_are_given_in_requests_per_second():
    trace = make([*np.linspace(0, 59, 120), *np.linspace(60, 119, 60)], span_s=120.0)
    rates = describe(trace).rates[1]
    assert (rates.bin_s, rates.max, rates.p50) == (60, 2.0, 1.5)


@given(st.lists(st.floats(0, 500), max_size=50), st.sampled_from([0.5, 1, 7, 60]))
def test_every_request_of_a_whole_bin_is_counted_once(arrivals, bin_s):
    trace = make(sorted(arrivals), span_s=500.0)
    counts = counts_per_bin(trace, bin_s)
    assert counts.size == int(500 / bin_s)
    assert counts.sum() == sum(at // bin_s < counts.size for at in arrivals)


def test_dispersion_tells_bursts_from_a_poisson_process():
    steady, code = (describe(generate(p, duration_s=3600, seed=0)) for p in ("steady", "code"))
    assert steady.dispersion[0] == pytest.approx(1.0, abs=0.1)
    assert code.dispersion[0] > 10


@pytest.mark.parametrize("arrivals", [[0.0], [0.0, 0.0, 0.0]])
def test_trace_that_covers_no_time_has_no_rates(arrivals):
    statistics = describe(make(arrivals))
    assert statistics.mean_rate_rps == 0.0
    assert statistics.rates == (None, None)
    assert statistics.dispersion == (None, None, None)


def test_what_cannot_be_described_is_refused():
    with pytest.raises(InvalidArgument, match="no requests to describe"):
        describe(make([]))
    with pytest.raises(InvalidArgument, match="that can be counted"):
        describe(make([0.0, 1e12]))
