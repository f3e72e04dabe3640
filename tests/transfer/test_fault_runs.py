"""Runs with faults in virtual time: nothing is lost, and nothing is silently wrong.

Each seed is a world of its own: a trainer that dies and comes back, links that lose, spoil, repeat
and lie, and receivers of different tiles that are killed, fail and rot. `docs/testing.md` says
what must be true at every moment, and what once all is quiet.
"""

from collections.abc import Callable

import pytest

from tests.transfer.faults.mutants import MUTANTS
from tests.transfer.faults.script import script_of
from tests.transfer.faults.world import failure_of

DEFAULT, ALL = 100, 10_000
AT_ONCE = 25
# Seeds until a guard that is missing must have been missed.
MUTANT_SEEDS = 400
# Seeds that have missed a guard and lie far back: they are tried first, which saves 20 s.
TRIED_FIRST = {"base check": 80, "proof of undo": 114, "scrub": 30}


def run(first: int, tried: Callable[..., None]) -> None:
    for seed in range(first, first + AT_ONCE):
        tried("transfer faults", sum(event.is_fault for event in script_of(seed)))
        if (failure := failure_of(seed, script_of(seed))) is not None:
            pytest.fail(f"seed {seed}: {failure}", pytrace=False)


@pytest.mark.parametrize("first", range(0, DEFAULT, AT_ONCE))
def test_runs_with_faults_lose_nothing(first: int, tried) -> None:
    run(first, tried)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(DEFAULT, ALL, AT_ONCE))
def test_ten_thousand_runs_with_faults_lose_nothing(first: int, tried) -> None:
    run(first, tried)


@pytest.mark.parametrize("guard", MUTANTS)
def test_fault_runs_notice_a_removed_guard(guard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[guard](monkeypatch)
    seeds = (TRIED_FIRST.get(guard, 0), *range(MUTANT_SEEDS))
    assert any(failure_of(seed, script_of(seed), is_plain=seed % 4 > 0) for seed in seeds)
