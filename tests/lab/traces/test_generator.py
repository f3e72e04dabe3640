from pathlib import Path

import numpy as np
import pytest

from rose.errors import InvalidArgument
from rose_lab.traces import PROFILES, generate, read_trace

REAL = Path(__file__).parents[4] / "shared/traces/AzureLLMInferenceTrace_conv.csv.gz"

# Statistics of the Azure chat trace: 19,366 requests in 58 minutes.
AZURE = {
    "rate_rps": 5.53,
    "prompt_mean": 1155,
    "prompt_p50": 1020,
    "prompt_p99": 4142,
    "output_mean": 211,
    "output_p50": 129,
    "output_p99": 601,
    "peak_second": 2.89,
    "peak_minute": 1.53,
    "second_variation": 0.264,
    "minute_variation": 0.213,
}
# Relative. Lengths are a fit; peaks are one draw of a maximum, whose own spread is about 8 %.
TOLERANCE = {"prompt_p50": 0.05, "output_p50": 0.06, "peak_second": 0.15, "peak_minute": 0.10}
TOLERANCE |= {"second_variation": 0.15, "minute_variation": 0.20}


def statistics(trace):
    def counts(bin_s):
        return np.histogram(trace.arrival_s, np.arange(0, trace.duration_s, bin_s))[0]

    def variation(bin_s):
        c = counts(bin_s)
        return np.sqrt(max(c.var() - c.mean(), 0)) / c.mean()

    values = {"rate_rps": trace.mean_rate_rps}
    for name, tokens in (("prompt", trace.prompt_tokens), ("output", trace.output_tokens)):
        values[f"{name}_mean"] = tokens.mean()
        values[f"{name}_p50"], values[f"{name}_p99"] = np.percentile(tokens, [50, 99])
    values["peak_second"] = counts(1).max() / counts(1).mean()
    values["peak_minute"] = counts(60).max() / counts(60).mean()
    values["empty_seconds"] = float((counts(1) == 0).mean())
    values["second_variation"] = variation(1)
    values["minute_variation"] = variation(60)
    return values


def median_statistics(profile="chat", seeds=25):
    each = [statistics(generate(profile, duration_s=3502, seed=seed)) for seed in range(seeds)]
    return {name: float(np.median([s[name] for s in each])) for name in each[0]}


def test_statistics_are_those_of_the_azure_chat_trace():
    generated = median_statistics()
    references = [AZURE]
    if REAL.exists():
        references.append(statistics(read_trace(REAL)))
    for reference in references:
        for name in AZURE:
            value = reference[name]
            tolerance = TOLERANCE.get(name, 0.03)
            assert generated[name] == pytest.approx(value, rel=tolerance), name


@pytest.mark.skipif(not REAL.exists(), reason="the Azure trace is not beside the repository")
def test_literals_are_those_of_the_file():
    trace = read_trace(REAL)
    assert len(trace) == 19_366
    real = statistics(trace)
    for name, value in AZURE.items():
        assert real[name] == pytest.approx(value, rel=0.01), name


# What is known of the Azure code trace: 8,819 requests in 57 minutes.
CODE = {
    "rate_rps": 2.57,
    "prompt_mean": 2048,
    "prompt_p50": 1500,
    "output_mean": 28,
    "output_p50": 13,
    "peak_second": 26,
    "empty_seconds": 0.73,
}


def test_code_is_the_harsh_case_of_the_azure_code_trace():
    generated = median_statistics("code", seeds=15)
    for name, value in CODE.items():
        tolerance = TOLERANCE.get(name, 0.04)
        assert generated[name] == pytest.approx(value, rel=tolerance), name


def test_steady_is_a_poisson_process_with_the_lengths_of_chat():
    steady, chat = median_statistics("steady", seeds=9), median_statistics(seeds=9)
    assert steady["rate_rps"] == pytest.approx(5.53, rel=0.02)
    assert steady["second_variation"] < 0.1 < chat["second_variation"]
    assert steady["minute_variation"] < 0.06 < chat["minute_variation"]
    for name in ("prompt_mean", "prompt_p99", "output_mean", "output_p50", "output_p99"):
        assert steady[name] == pytest.approx(chat[name], rel=0.03), name


def test_bursts_are_correlated_over_seconds():
    """Neighbouring seconds resemble each other, which those of a plain Poisson process do not."""
    counts = [
        np.histogram(
            generate("chat", duration_s=3500, rate_rps=5.53, seed=seed).arrival_s, np.arange(3501)
        )[0]
        for seed in range(10)
    ]
    lag_one = np.median([np.corrcoef(c[:-1], c[1:])[0, 1] for c in counts])
    assert 0.15 < lag_one < 0.35


def test_equal_seeds_give_equal_traces_and_others_do_not():
    one, same, other = (generate("chat", duration_s=60, rate_rps=5, seed=s) for s in (7, 7, 8))
    assert np.array_equal(one.arrival_s, same.arrival_s)
    assert np.array_equal(one.prompt_tokens, same.prompt_tokens)
    assert not np.array_equal(one.arrival_s[:10], other.arrival_s[:10])


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("duration_s", [0.1, 0.5, 20.0, 61.3])
def test_short_traces_keep_the_mean_rate(profile, duration_s):
    traces = [generate(profile, duration_s=duration_s, rate_rps=8.0, seed=s) for s in range(200)]
    total = sum(len(t) for t in traces)
    expected = 200 * duration_s * 8.0
    assert total == pytest.approx(expected, abs=5 * expected**0.5)
    assert all(t.duration_s == duration_s for t in traces)
    assert all(t.arrival_s.max(initial=0.0) <= duration_s for t in traces)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"profile": "video"}, "profile 'video' is not known: use chat, code, steady"),
        ({"duration_s": 0.0}, "duration_s is 0.0"),
        ({"rate_rps": float("nan")}, "rate_rps is nan"),
        ({"seed": -1}, "seed is -1"),
        ({"rate_rps": 1e12}, "shorten it"),
        ({"duration_s": 1e12, "rate_rps": 1e-9}, "shorten it"),
    ],
)
def test_bad_values_are_named(change, says):
    with pytest.raises(InvalidArgument, match=says):
        generate(**({"profile": "chat", "duration_s": 10.0, "rate_rps": 1.0, "seed": 0} | change))
