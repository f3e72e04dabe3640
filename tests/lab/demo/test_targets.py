"""Targets in units of the machine, known before any arm runs."""

import pytest

from rose.errors import InvalidArgument
from rose.slo import SLO, Policy
from rose_lab.demo.record import StepSamples
from rose_lab.demo.targets import Calibration, choose_targets, feasibility, round_up

FOUND = Calibration(StepSamples((100.0,) * 60, (20.0,) * 60), ttft_ms_p99=151.0, tpot_ms_p99=22.1)


def test_targets_are_three_times_what_serving_alone_takes_rounded_up() -> None:
    assert choose_targets(FOUND, ttft_ms=None, tpot_ms=None) == SLO(ttft_ms=460.0, tpot_ms=67.0)
    assert round_up(450.0, 10.0) == 450.0


def test_a_flag_overrides_its_target_alone() -> None:
    assert choose_targets(FOUND, ttft_ms=200.0, tpot_ms=None) == SLO(ttft_ms=200.0, tpot_ms=67.0)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"ttft_ms": 99.0, "tpot_ms": None}, "--ttft-ms 99 is below .* feasible target is 100"),
        ({"ttft_ms": None, "tpot_ms": 19.0}, "--tpot-ms 19 is below .* feasible target is 20"),
    ],
)
def test_a_target_below_one_step_is_refused_with_the_smallest_feasible_one(
    flags: dict[str, float | None], said: str
) -> None:
    with pytest.raises(InvalidArgument, match=said):
        choose_targets(FOUND, **flags)


@pytest.mark.parametrize(
    ("slo", "segment_ms", "options"),
    [
        (SLO(ttft_ms=106.0, tpot_ms=60.0), 5.0, None),
        (SLO(ttft_ms=105.0, tpot_ms=60.0), 5.0, "--ttft-ms 310"),
        (SLO(ttft_ms=300.0, tpot_ms=25.0), 5.0, "--tpot-ms 66"),
        (SLO(ttft_ms=9000.0, tpot_ms=9000.0), 101.0, ""),
    ],
)
def test_a_quantum_fits_or_the_sentence_says_at_which_target_it_would(
    slo: SLO, segment_ms: float, options: str | None
) -> None:
    found = feasibility(FOUND.steps, slo, Policy(), segment_ms=segment_ms, rank=98)
    assert (found.why is None) == (options is None)
    assert found.options == (options or "")
