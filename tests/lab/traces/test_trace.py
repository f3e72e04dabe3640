import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.errors import InvalidArgument
from rose_lab.traces import Trace


def make(arrival_s=(0.0, 1.0, 1.0, 4.0), prompt=(1, 2, 3, 4), output=(5, 6, 7, 8), **more):
    return Trace(
        arrival_s=np.array(arrival_s, dtype=np.float64),
        prompt_tokens=np.array(prompt, dtype=np.int64),
        output_tokens=np.array(output, dtype=np.int64),
        name="t",
        **more,
    )


@given(
    st.lists(st.floats(0, 1e4), max_size=40),
    st.floats(1e-3, 1e3),
)
def test_windows_side_by_side_hold_every_request_once(arrivals, duration_s):
    arrivals.sort()
    lengths = range(1, len(arrivals) + 1)
    trace = make(arrivals, lengths, lengths)
    edges = np.arange(0, trace.duration_s + duration_s, duration_s)[:200]
    # The next edge is computed as the window does it, so the windows touch exactly.
    kept = np.concatenate([trace.window(e, duration_s).prompt_tokens for e in edges])
    expected = [n for n, at in zip(lengths, arrivals, strict=True) if at < edges[-1] + duration_s]
    if np.array_equal(edges[:-1] + duration_s, edges[1:]):
        assert kept.tolist() == expected


@given(st.floats(1e-3, 1e4))
def test_rescaled_has_the_rate_asked_for_and_keeps_lengths(rate_rps):
    for trace in (make(), make(span_s=7.0)):
        scaled = trace.rescaled(rate_rps=rate_rps)
        assert scaled.mean_rate_rps == pytest.approx(rate_rps)
        assert scaled.prompt_tokens.tolist() == [1, 2, 3, 4]
        ratio = scaled.arrival_s[1:] / trace.arrival_s[1:]
        assert ratio == pytest.approx(trace.mean_rate_rps / rate_rps)


def test_lengths_are_scaled_up_to_whole_tokens_and_cut():
    trace = make(prompt=(1, 10, 100, 1000), output=(1, 3, 5, 7))
    scaled = trace.with_lengths(scale=0.25, prompt_max=200, output_max=1)
    assert scaled.prompt_tokens.tolist() == [1, 3, 25, 200]
    assert scaled.output_tokens.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("scale", [1e5, 1e23, 1e308])
def test_a_scale_that_makes_a_request_longer_than_any_context_is_refused(scale):
    trace = make(prompt=(1, 10, 100, 1000), output=(1, 3, 5, 7))
    with pytest.raises(InvalidArgument, match="must have at most 16777216"):
        trace.with_lengths(scale=scale, prompt_max=200, output_max=1)


def test_arrays_are_copied_and_read_only():
    arrivals = np.array([0.0, 1.0])
    trace = make(arrivals, (1, 1), (1, 1))
    arrivals[0] = 0.5
    assert trace.arrival_s[0] == 0.0
    with pytest.raises(ValueError, match="read-only"):
        trace.arrival_s[0] = 1.0


@pytest.mark.parametrize(
    ("what", "says"),
    [
        (lambda: make((1.0, 0.0, 2.0, 3.0)), "ascending"),
        (lambda: make((-1.0, 0.0, 2.0, 3.0)), ">= 0"),
        (lambda: make((0.0, float("nan"), 2.0, 3.0)), "finite"),
        (lambda: make(prompt=(1, 2, 3)), "equally long"),
        (lambda: make(prompt=(1, 0, 3, 4)), "prompt lengths"),
        (lambda: make(output=(1, 2, 3, 1 << 40)), "output lengths"),
        (lambda: make(span_s=1.0), "span_s is 1.0"),
        (lambda: make().rescaled(rate_rps=0.0), "rate_rps is 0.0"),
        (lambda: make((0.0,), (1,), (1,)).rescaled(rate_rps=1.0), "no rate"),
        (lambda: make().with_lengths(scale=-1.0), "scale is -1.0"),
        (lambda: make().with_lengths(prompt_max=0), "limit of 0"),
        (lambda: make().window(0.0, 0.0), "duration > 0"),
        (lambda: make().head(-1), "n must be at least 0, got -1"),
    ],
)
def test_bad_values_are_named(what, says):
    with pytest.raises(InvalidArgument, match=says):
        what()
