"""m6 and its neighbours where there is no GPU: what they run and say, with tiny shapes."""

import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.gpu import end_to_end, meeting
from bench.gpu.arms import ALONE, ARMS, Quiet
from bench.gpu.decoder import LIKE_8B, TINY, Decoder, Step
from bench.gpu.end_to_end import ROWS, SMALL, Bench, measure, parse
from bench.gpu.engines import Place, RolloutEngine, ServingEngine
from bench.gpu.meeting import Meeting, report_meeting
from bench.gpu.other_process import borrowing
from bench.gpu.report import Cannot, Report, read_rows
from bench.gpu.requests import Latencies, Request, bursty
from bench.gpu.run import SUITES
from bench.gpu.shared_rows import ARM_NAMES, meeting_rows
from rose._core import HostGate

torch = pytest.importorskip("torch")

CPU = torch.device("cpu")
BRIEF = SMALL.__class__(
    "cpu",
    TINY,
    seconds=0.4,
    rate=25.0,
    every=1,
    prompt_max=24,
    output_max=8,
    ttft_ms=60_000.0,
    tpot_ms=10_000.0,
)


# ---- the trace


@given(st.integers(0, 2**32), st.floats(0.5, 30), st.integers(2, 64), st.integers(2, 64))
def test_requests_come_in_order_within_their_limits(
    seed: int, rate: float, prompt_max: int, output_max: int
) -> None:
    sizes = {"prompt_max": prompt_max, "output_max": output_max}
    requests = bursty(seed=seed, seconds=5, rate=rate, **sizes)
    assert requests == bursty(seed=seed, seconds=5, rate=rate, **sizes)
    assert [one.number for one in requests] == list(range(len(requests)))
    times = [one.at_s for one in requests]
    assert times == sorted(times)
    assert all(0 <= at_s < 5 for at_s in times)
    assert all(1 <= one.prompt_tokens <= prompt_max for one in requests)
    assert all(2 <= one.output_tokens <= output_max for one in requests)


def test_rate_is_the_mean_over_bursts_too() -> None:
    counts = [
        len(bursty(seed=seed, seconds=100, rate=6, prompt_max=9, output_max=9))
        for seed in range(30)
    ]
    assert 5.4 < statistics.mean(counts) / 100 < 6.6


def test_latencies_count_ended_requests_after_the_warm_up() -> None:
    early = Request(0, 0.1, 5, 2, [0.2, 0.3])
    ended = Request(1, 1.0, 5, 3, [1.5, 1.6, 1.8])
    running = Request(2, 1.1, 5, 3, [1.9])
    found = Latencies.of([early, ended, running], from_s=0.5)
    assert found is not None
    assert (found.requests, round(found.ttft_ms_p50), round(found.tpot_ms_p99)) == (1, 500, 150)
    assert Latencies.of([running]) is None


# ---- the model and its engines


def test_the_large_shape_is_that_of_an_8b_model() -> None:
    assert LIKE_8B.weight_bytes / 2 == pytest.approx(7.5e9, rel=0.01)  # without embeddings
    assert LIKE_8B.kv_bytes / (LIKE_8B.slots * LIKE_8B.context) == 128 * 1024


@torch.inference_mode()
def test_decode_sees_the_prompt_of_its_own_slot_and_nothing_else() -> None:
    def token_after(prompt_slot: int, noise_slot: int) -> int:
        decoder = Decoder(TINY, CPU, seed=3)
        prefill, decode = Step(decoder, 1, 8, every=4), Step(decoder, 4, 1, every=2)
        for slot in (prompt_slot, noise_slot):
            prefill.aim([slot], [0])
            for part in prefill.parts:
                part.replay()
        decode._inputs.copy_(decode._inputs[:1].expand_as(decode._inputs))
        lengths = [0] * 4
        lengths[prompt_slot] = 8
        decode.aim(list(range(4)), lengths)
        for part in decode.parts:
            part.replay()
        return int(decode.out[prompt_slot])

    assert token_after(1, 1) == token_after(1, 3) == token_after(2, 0)


@torch.inference_mode()
def test_step_in_parts_is_the_step_in_one() -> None:
    results = []
    for every in (1, 3, 4):
        step = Step(Decoder(TINY, CPU, seed=3), 1, 8, every=every)
        step.aim([2], [0])
        for part in step.parts:
            part.replay()
        results.append(step._state.clone())
    assert len(results[0]) == 1
    assert all(torch.equal(one, results[0]) for one in results)


@torch.inference_mode()
def test_rollouts_are_mostly_prefill() -> None:
    engine = RolloutEngine(Decoder(TINY, CPU, seed=1), Place(), every=2)
    kinds = []
    for _ in range(10):
        kinds.append(engine.next.tokens)
        engine.count()
    assert kinds == ([32] * 4 + [1]) * 2
    assert engine.tokens == 2 * (4 * 32 + TINY.slots)


def test_chunks_of_a_long_prompt_follow_one_another() -> None:
    calls: list[tuple[int, int]] = []
    engine = ServingEngine(Decoder(TINY, CPU, seed=1), Place(), chunk=8)
    engine.prefill = lambda slot, first: calls.append((slot, first))  # type: ignore[method-assign]
    request = Request(0, 0.0, 20, 2)
    stop = end_to_end.threading.Event()
    with torch.inference_mode():
        watched = Recorder()
        engine.run([request], watched, stop=stop, began_s=end_to_end.time.perf_counter())
    assert calls == [(0, 0), (0, 8), (0, 16)]
    assert watched.said == [
        "arrived 0 20",
        "step 8",
        "step 8",
        "step 4",
        "0",
        "step 1",
        "0",
        "end 0",
    ]
    assert request.is_done


class Recorder(Quiet):
    """Writes down what serving says."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def arrived(self, request_id: str, *, prompt_tokens: int) -> None:
        self.said.append(f"arrived {request_id} {prompt_tokens}")

    def emitted_all(self, request_ids) -> None:
        self.said += list(request_ids)

    def finished(self, request_id: str) -> None:
        self.said.append(f"end {request_id}")

    def step(self, batch):
        self.said.append(f"step {batch.prefill_tokens + batch.decode_sequences}")
        return super().step(batch)


# ---- the arms


@pytest.fixture(scope="module")
def bench() -> Bench:
    made = Bench(BRIEF)
    made.rollout_alone(0.1)
    made.run(ALONE, 1)  # a first segment that is slow would be all that rose ever knows
    return made


def test_serving_alone_has_no_rollouts(bench: Bench) -> None:
    found = bench.run(ALONE, 1)
    assert found.rollout_tokens_per_s == 0
    assert found.latencies.requests > 0


@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_serves_all_and_rolls_out(bench: Bench, arm: str) -> None:
    found = bench.run(ARMS[arm], 2)
    assert found.latencies.requests == bench.run(ALONE, 2).latencies.requests
    assert found.rollout_tokens_per_s > 0


def test_host_window_is_quiet_between_the_first_arrival_and_the_last_end() -> None:
    quiet = Quiet()
    quiet.arrived("a", prompt_tokens=1)
    quiet.arrived("b", prompt_tokens=1)
    quiet.finished("a")
    assert not quiet.is_quiet.is_set()
    quiet.finished("b")
    assert quiet.is_quiet.is_set()


# ---- what is reported


def test_all_rows_are_said_or_have_a_reason(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    measure(Report(path, ROWS), BRIEF)
    rows, unmeasured = read_rows(path)
    values = {one["name"]: one for one in rows}
    reasons = {one["name"]: one["reason"] for one in unmeasured}
    assert set(ROWS) == {name for name in values if not name.startswith("aa_")} | set(reasons)
    # Too few requests for P99s, and nothing else is missing.
    assert {name for name in ROWS if "p99" in name} == set(reasons)
    assert all("too few" in reason for reason in reasons.values())
    assert values["e2e_harvest_share_all"]["value"] > 0
    assert values["e2e_ttft_ms_p50_over_alone_rose_idle"]["bar"] == {"at_most": 1.02}


def test_arm_that_fails_costs_its_own_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_device: object, _promise: object) -> None:
        raise Cannot("it does not open")

    monkeypatch.setitem(end_to_end.ARMS, "priority", broken)
    path = tmp_path / "rows"
    measure(Report(path, ROWS), BRIEF)
    rows, unmeasured = read_rows(path)
    whys = {one["name"] for one in unmeasured if one["reason"] == "it does not open"}
    assert whys == {name for name in ROWS if name.endswith("_priority")}
    assert "e2e_harvest_rose_slack" in {one["name"] for one in rows}


def test_long_run_is_a_command() -> None:
    settings, rows = parse(["--device", "cuda:1", "--seconds", "340", "--rows", "x"])
    assert (settings.device, settings.seconds, settings.shape) == ("cuda:1", 340.0, LIKE_8B)
    assert str(rows) == "x"
    assert parse(["--device", "cpu", "--rows", "x", "--seeds", "3"])[0].seeds == (1, 2, 3)


def test_every_new_suite_is_in_the_run_and_promises_rows() -> None:
    promised = {one.module.rsplit("suite_")[1]: one.promised for one in SUITES}
    for name in ("end_to_end", "abort", "two_processes", "persistent", "mps"):
        assert promised[name], name
    names = [row for rows in promised.values() for row in rows]
    assert len(names) == len(set(names))


# ---- a borrower in another process


@pytest.fixture
def apart() -> Iterator[HostGate]:
    gate = HostGate()
    with borrowing(gate, device="cpu", length_ms=0.5):
        yield gate


def test_meeting_with_another_process_is_measured(
    apart: HostGate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meeting, "STEPS", 3)
    monkeypatch.setattr(meeting, "PAUSES", 5)
    path = tmp_path / "rows"
    step_s = 0.001

    def step_ms() -> float:
        end_to_end.time.sleep(step_s)
        return step_s * 1e3

    report_meeting(Report(path, meeting_rows("mps")), "mps", Meeting(step_ms, apart))
    rows, _ = read_rows(path)
    values = {one["name"]: one["value"] for one in rows}
    assert apart.passed > 5  # it ran, in its own process
    assert values["other_process_late_segments_mps"] == 0
    assert values["other_process_parked_tax_mps"] == 1.0
    assert set(meeting_rows("mps")) < set(values)


def test_process_that_cannot_begin_says_why() -> None:
    with (
        pytest.raises(Cannot, match="ended at once"),
        borrowing(HostGate(), device="cuda:0", length_ms=1, CUDA_VISIBLE_DEVICES=""),
    ):
        pass


def test_rows_name_every_arm() -> None:
    assert tuple(ARMS) == ARM_NAMES
