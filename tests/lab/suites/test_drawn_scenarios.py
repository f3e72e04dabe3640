"""The drawn scenarios are those that were listed, and each is within the documented ranges."""

import hashlib
from pathlib import Path

import pytest

from bench.lab.suites.drawn_scenarios import drawn, drawn_content, read_seeds
from rose.errors import InvalidArgument
from rose_lab.sim.scenario.distributions import Lognormal
from rose_lab.sim.scenario.environments import Drawn
from rose_lab.sim.scenario.parts import SyntheticTraffic
from rose_lab.sim.scenario.scenario import Scenario

SEEDS_FILE = Path(__file__).parents[3] / "bench/scenarios/drawn_seeds.txt"
# Digest of all drawn scenarios, fixed before any policy was tuned. If it differs, fix the drawing.
# Three keys have been renamed since; the digest is that of the old names.
OLD_NAMES = {"'first_input'": "'first_heard'", "'input'": "'heard'", "'output'": "'said'"}
DIGEST = "811edf3aa4ca4bf2a7f3bdb13f6ccd98a38b33f0636752d7b567d51d4ace62f2"


@pytest.fixture(scope="module")
def scenarios() -> list[Scenario]:
    return [drawn(seed) for seed in read_seeds(SEEDS_FILE)]


def test_two_hundred_seeds_are_listed() -> None:
    assert len(read_seeds(SEEDS_FILE)) == 200


def test_the_scenarios_are_those_that_were_committed_before_tuning() -> None:
    content = "".join(repr(drawn_content(seed)) for seed in read_seeds(SEEDS_FILE))
    for name, old_name in OLD_NAMES.items():
        content = content.replace(name, old_name)
    assert hashlib.sha256(content.encode()).hexdigest() == DIGEST


def test_a_seed_gives_the_same_scenario_again_and_another_seed_another(
    scenarios: list[Scenario],
) -> None:
    assert drawn(1) == scenarios[0]
    assert len({repr(one.jobs) for one in scenarios}) == len(scenarios)


def test_every_scenario_is_within_the_documented_ranges(scenarios: list[Scenario]) -> None:
    for one in scenarios:
        (job,), (dedicated,) = one.jobs, one.dedicated
        assert 32 <= job.batch <= 1024 or (job.batch < 32 and one.versions == 3)
        assert job.group in {4, 8, 16}
        assert 8 << 10 <= job.context_tokens <= 64 << 10
        assert 0 <= job.max_staleness <= 4
        assert 1 <= one.network.link_gbit_per_s <= 200
        assert 0.005 <= one.network.changed_share <= 0.05
        assert 2 <= dedicated.count <= 64
        # Whole engines: rounded by half an engine of each kind at most, or one engine at least.
        slack = sum(max(group.tp, 1) for group in one.borrowed)
        borrowed = sum(group.count for group in one.borrowed)
        assert 0.5 * dedicated.count - slack <= borrowed <= 4 * dedicated.count + slack
        for group in one.borrowed:
            assert isinstance(group.traffic, SyntheticTraffic)
            assert 0.1 <= group.traffic.load <= 0.85
            # Serving alone must be able to keep its promise.
            assert group.traffic.load * group.traffic.minute_peak <= 0.951
        assert isinstance(job.environment, Drawn)
        assert isinstance(job.environment.turns, Lognormal)
        assert 2 <= job.environment.turns.median <= 24


def test_the_ends_of_the_ranges_are_reached(scenarios: list[Scenario]) -> None:
    counts = [one.dedicated[0].count for one in scenarios]
    loads = [group.traffic.load for one in scenarios for group in one.borrowed]
    batches = [one.jobs[0].batch for one in scenarios]
    assert min(counts) <= 4
    assert max(counts) >= 48
    assert min(loads) < 0.15
    assert max(loads) > 0.8
    assert min(batches) < 48
    assert max(batches) > 700
    assert {one.jobs[0].max_staleness for one in scenarios} == {0, 1, 2, 3, 4}
    assert len({one.jobs[0].mode for one in scenarios}) == 3


@pytest.mark.parametrize("line", ["-1", "1.5", "one", "7", "\N{DEVANAGARI DIGIT ONE}"])
def test_a_line_without_a_seed_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "seeds.txt"
    path.write_text(f"# said\n7\n{line}\n", encoding="utf-8")
    with pytest.raises(InvalidArgument, match="line 3"):
        read_seeds(path)
