"""What engines say, read, checked and turned into observations."""

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.errors import CorruptData
from rose_lab.broker.engine_reader import EngineReader, LatencyHistogram
from rose_lab.cli.engine_metrics import read_metrics
from tests.lab.broker.broker_world import device
from tests.lab.cli.engine_pages import sglang, vllm


@pytest.mark.parametrize(
    ("page", "engine", "tokens"),
    [
        (vllm(ttft=(0.05, 0.3), tpot=(0.02,) * 5), "vLLM", 262144),
        (vllm(ttft=(0.05, 0.3), tpot=(0.02,) * 5, kv_name="vllm:gpu_cache_usage_perc"), "vLLM",
         262144),
        (vllm(ttft=(0.05, 0.3), tpot=(0.02,) * 5,
              tpot_name="vllm:time_per_output_token_seconds"), "vLLM", 262144),
        (sglang(ttft=(0.05, 0.3), tpot=(0.02,) * 5), "SGLang", 262144),
    ],
)  # fmt: skip
def test_both_engines_are_read_under_all_their_names(page, engine, tokens):
    said = read_metrics(page)
    assert (said.engine, said.kv_used, said.running, said.waiting) == (engine, 0.25, 3, 0)
    assert said.kv_tokens == tokens
    assert said.model
    assert (said.ttft.counts[-1], said.tpot.counts[-1]) == (2, 5)
    assert said.ttft.p99_ms() > 250
    assert 10 < said.tpot.p99_ms() < 25  # in the bucket of 20 ms


def test_ranks_of_one_engine_are_summed_and_the_fullest_pool_counts():
    page = vllm(kv=0.25, running=3, ttft=(0.05,)) + vllm(
        kv=0.75, running=4, waiting=2, ttft=(0.3, 0.4), rank="1"
    )
    said = read_metrics(page)
    assert (said.kv_used, said.running, said.waiting) == (0.75, 7, 2)
    assert said.kv_tokens == 2 * 262144
    assert said.ttft.counts[-1] == 3


@pytest.mark.parametrize(
    ("page", "sentence"),
    [
        ("", "no metrics of vLLM"),
        ("<html>welcome</html>", "no metrics of vLLM"),
        (vllm(kv=float("nan")), "must be a finite number of at least 0"),
        (vllm(kv=float("inf")), "must be a finite number of at least 0"),
        (vllm(kv=-0.5), "must be a finite number of at least 0"),
        (vllm(kv=45.0), "vllm:kv_cache_usage_perc is 45, which is not a share"),
        (vllm(running=-3), "num_requests_running must be a finite number of at least 0"),
        (vllm(waiting=float("nan")), "num_requests_waiting must be a finite number of at least 0"),
        (vllm(preempted=-1), "num_preemptions_total must be a finite number of at least 0"),
        (vllm().replace("kv_cache_usage", "x"), "does not report vllm:kv_cache_usage_perc"),
        (vllm().replace("num_requests_waiting", "x"), "num_requests_waiting is missing"),
        (vllm().replace("time_to_first", "x"), "time_to_first_token_seconds is missing"),
        (vllm().replace("inter_token", "x"), "inter_token_latency_seconds is missing"),
        (vllm().replace('le="+Inf"', 'le="9"'), "must have a bucket with the bound"),
        (vllm().replace('le="+Inf"', 'le="many"'), "has no upper bound"),
        (vllm(ttft=(0.05,)).replace('le="0.25"} 1.0', 'le="0.25"} 0.0'), "descend"),
        (vllm().replace('le="0.25"} 0.0', 'le="0.25"} nan'), "must be finite and at least 0"),
        (vllm().replace('le="0.25"} 0.0', 'le="0.25"} lots'), "not the text format of Prometheus"),
        (vllm().replace('le="0.25"} 0.0', 'le="0.25'), "not the text format of Prometheus"),
        (vllm() + "vllm:num_requests_running 1\n" * 20_001, "no engine has more than 20000"),
        (sglang(kv=1.5), "sglang:token_usage is 1.5"),
    ],
)  # fmt: skip
def test_nonsense_is_refused_in_one_sentence(page, sentence):
    with pytest.raises(CorruptData, match=re.escape(sentence)):
        read_metrics(page)


@given(st.data())
def test_a_damaged_page_is_read_or_refused_and_nothing_else(data):
    page = vllm(ttft=(0.05, 0.3), tpot=(0.02,) * 5)
    at = data.draw(st.integers(0, len(page)))
    until = data.draw(st.integers(at, min(len(page), at + 40)))
    damage = data.draw(st.text(alphabet='{}"=,\\ \n#+-.0019eInfNaN:_vxl', max_size=12))
    try:
        said = read_metrics(page[:at] + damage + page[until:])
    except CorruptData:
        return
    assert 0 <= said.kv_used <= 1
    assert said.running >= 0
    for one in (said.ttft.p99_ms(), said.tpot.p99_ms()):
        assert one is None or one >= 0


@given(st.lists(st.floats(0.001, 9.9), min_size=1, max_size=300))
def test_the_tail_lies_in_the_bucket_of_the_true_one(values):
    bounds = (*np.geomspace(0.001, 10.0, 20).tolist(), math.inf)
    counts = tuple(float(sum(value <= bound for value in values)) for bound in bounds)
    found_s = LatencyHistogram(bounds, counts).p99_ms() / 1000
    true_s = sorted(values)[math.ceil(0.99 * len(values)) - 1]
    bucket = int(np.searchsorted(bounds, true_s))
    low_s = bounds[bucket - 1] if bucket else 0.0
    assert low_s - 1e-12 <= found_s <= bounds[bucket] + 1e-12


def test_a_tail_beyond_the_last_bound_is_infinite_and_not_that_bound():
    assert read_metrics(vllm(ttft=(60.0,))).ttft.p99_ms() == math.inf


def observed(*pages):
    reader = EngineReader(device())
    return [reader.observe(read_metrics(page), n * 5e3) for n, page in enumerate(pages)]


def test_latencies_are_those_of_the_window_and_not_of_all_time():
    slow, quick = (9.0,) * 50, (0.05,) * 10
    first, second, *_, last = observed(
        vllm(ttft=slow), vllm(ttft=slow + quick), *[vllm(ttft=slow + quick + quick)] * 4
    )
    assert first.ttft_ms_p99 is None  # nobody knows when the slow ones were
    assert second.ttft_ms_p99 <= 100
    assert last.ttft_ms_p99 is None  # none ended within the last 15 s


def test_an_engine_that_starts_anew_counts_from_zero_again():
    for slow_s in (0.3, 2.0):
        _, after = observed(vllm(ttft=(0.05,) * 50), vllm(ttft=(slow_s,) * 2))
        assert after.ttft_ms_p99 > 250
    _, other = observed(vllm(ttft=(0.05,)), vllm(ttft=(0.3, 0.3)).replace('le="0.02"', 'le="0.03"'))
    assert other.ttft_ms_p99 > 250


def test_preempted_requests_are_those_since_the_reading_before():
    found = observed(*[vllm(preempted=n) for n in (3, 5, 5, 0, 1)])
    assert [one.preempted for one in found] == [0, 2, 0, 0, 1]
