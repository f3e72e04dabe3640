"""The parts of the update suite that can be tried in seconds; no figure is judged."""

from collections.abc import Iterable

import pytest

from bench import bench_update
from bench.bench_update import EXTRAPOLATED, PartsRun, to_and_fro
from bench.serving_updates import _Request, felt


class Silent:
    """A report of which nothing is measured."""

    def __init__(self) -> None:
        self.missing: dict[str, str] = {}

    def leave_out(self, names: Iterable[str], reason: str) -> None:
        self.missing |= dict.fromkeys(names, reason)


def test_rows_that_need_a_link_are_left_out_with_the_reason_where_there_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench_update, "without_links", lambda: "only root may")
    report = Silent()
    bench_update.test_paced_link(report, bench_update.WIRES[0])
    bench_update.test_refit(report, None, bench_update.REFIT_PEERS[0], 1)
    bench_update.test_extrapolation(report)
    missing = {"paced_link_fraction_1gbit_0.2ms", "speedup_vs_dense_broadcast_1gbit", *EXTRAPOLATED}
    assert missing <= report.missing.keys()
    assert set(report.missing.values()) == {"only root may"}


def test_a_peer_without_its_library_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench_update, "without_links", lambda: None)
    monkeypatch.setattr(bench_update, "find_spec", lambda _name: None)
    verl = next(peer for peer in bench_update.REFIT_PEERS if peer.name == "verl_like")
    report = Silent()
    bench_update.test_refit(report, None, verl, 10)
    assert report.missing["speedup_vs_verl_like_10gbit"] == "torch is not installed"


def test_wires_are_named_by_rate_and_delay() -> None:
    assert [wire.name for wire in bench_update.WIRES] == [
        *("1gbit_0.2ms", "1gbit_20ms", "10gbit_0.2ms", "10gbit_20ms")
    ]


def test_updates_go_to_and_fro() -> None:
    seen: list[int] = []
    measure = to_and_fro(seen.append)
    assert all(measure() > 0 for _ in range(4))
    assert seen == [1, 0, 1, 0]


def test_a_request_is_felt_from_asking_to_its_tokens() -> None:
    class Said:
        def __init__(self, count: int, *, is_last: bool) -> None:
            self.generated_tokens = [0] * count
            self.failure = None
            self.is_finished = lambda: is_last

    request = _Request(asked_ns=0)
    for count in (1, 2, 4):
        request.hear(Said(count, is_last=count == 4))
    assert request.is_over.is_set()
    assert len(request.tokens_ns) == 4
    request.tokens_ns = [5_000_000, 6_000_000, 9_000_000, 9_000_000]
    assert felt([request]).ttft_ms_p99 == 5.0
    assert felt([request]).tpot_ms_p99 == 3.0


def test_the_parts_of_an_update_are_those_of_whole_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench_update, "PART_ELEMENTS", 1 << 20)
    measured = PartsRun()
    for _ in range(3):
        measured.round()
    parts = measured.parts(wire_efficiency=0.5)
    assert parts.wire_efficiency == 0.5
    assert 1.0 < parts.bytes_per_change < 2.0
    assert min(parts.pack_gb_s, parts.stage_gb_s, parts.commit_gb_s, parts.commit_over_bare) > 0


@pytest.mark.slow
def test_an_engine_serves_while_it_is_updated() -> None:
    pytest.importorskip("transformers")
    from bench.serving_updates import served_engine

    with served_engine() as served:
        begun = len(served.pauses_ms)
        felt_now = served.window(1.0, has_updates=True)
        assert len(served.pauses_ms) > begun
        assert felt_now.ttft_ms_p99 > 0
        quiet = len(served.pauses_ms)
        served.window(0.5, has_updates=False)
        assert len(served.pauses_ms) == quiet
