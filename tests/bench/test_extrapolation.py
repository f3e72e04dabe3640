"""The arithmetic from measured parts to a large model: each term counts, the right way round."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.extrapolation import (
    LARGE,
    Parts,
    pause_on_cpus_ms,
    pause_on_devices_ms,
    published_to_staged_s,
)
from bench.rows import faults, row

PARTS = Parts(
    pack_gb_s=10.0,
    bytes_per_change=1.25,
    wire_efficiency=0.9,
    stage_gb_s=1.0,
    commit_gb_s=5.0,
    commit_over_bare=1.2,
)


def test_an_update_is_what_one_works_out_by_hand() -> None:
    # 240 GB over 128 ranks of 10 GB/s; 3.6 G changes of 1.25 B at 25 Gb/s, or over 8 ranks of two
    # threads.
    pack_s, wire_s, stage_s = 240 / 1280, 4.5 * 8 / (25 * 0.9), 4.5 / 16
    figure = published_to_staged_s(PARTS, LARGE)
    terms = {term.name.split(":")[0]: term.value for term in figure.terms}
    assert (terms["pack"], terms["wire"], terms["stage"]) == pytest.approx(
        (pack_s, wire_s, stage_s)
    )
    assert figure.value == pytest.approx(pack_s + wire_s)
    slow = published_to_staged_s(replace(PARTS, stage_gb_s=0.1), LARGE)
    assert slow.value == pytest.approx(pack_s + 10 * stage_s)


def test_a_pause_is_what_one_works_out_by_hand() -> None:
    # A rank has 30 GB; 38.6 % of the sectors of 16 elements have a change at 3 %.
    moved_gb = 30 * (1 + 2 * (1 - 0.97**16))
    assert pause_on_devices_ms(PARTS, LARGE).value == pytest.approx(moved_gb / 3.5 * 1.2)
    assert pause_on_cpus_ms(PARTS, LARGE).value == pytest.approx(30 / 5 * 1e3)


@given(
    st.sampled_from(["pack_gb_s", "wire_efficiency", "stage_gb_s"]),
    st.floats(1.1, 100.0),
)
def test_a_faster_part_never_makes_an_update_slower(part: str, times: float) -> None:
    faster = replace(PARTS, **{part: getattr(PARTS, part) * times})
    assert published_to_staged_s(faster, LARGE).value <= published_to_staged_s(PARTS, LARGE).value


@given(st.integers(1, 64))
def test_cores_share_the_work_of_a_rank(cores: int) -> None:
    at = replace(LARGE, trainer_cores=cores, staging_threads=2 * cores, receiver_cores=cores)
    slow = replace(PARTS, pack_gb_s=10.0 / cores, stage_gb_s=1.0 / cores)
    alone, shared = published_to_staged_s(PARTS, LARGE), published_to_staged_s(slow, at)
    assert shared.value == pytest.approx(alone.value)
    assert pause_on_cpus_ms(PARTS, at).value == pytest.approx(6e3 / cores)


@given(st.floats(1.1, 10.0))
def test_more_bytes_take_longer(times: float) -> None:
    larger = replace(PARTS, bytes_per_change=PARTS.bytes_per_change * times)
    assert published_to_staged_s(larger, LARGE).value > published_to_staged_s(PARTS, LARGE).value


def test_a_row_has_every_part_and_every_assumption() -> None:
    for figure, parts in (
        (published_to_staged_s(PARTS, LARGE), {10.0, 1.25, 0.9, 1.0}),
        (pause_on_devices_ms(PARTS, LARGE), {1.2, 3500.0}),
        (pause_on_cpus_ms(PARTS, LARGE), {5.0}),
    ):
        one = row("x", figure.value, "s", terms=figure.terms)
        values = {term["value"] for term in one["terms"]}
        assert parts | {120e9, 0.03, 25.0, 128.0, 8.0, 1.0} <= values
        document = {"machine": {"cpu": "x"}, "commit": "", "suite": "s", "rows": [one]}
        assert faults(document) == []
