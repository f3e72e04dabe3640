"""Whoever is to be alone is, and is not passed by for ever."""

import multiprocessing
import time
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path

from tests.alone import ALONE, FIRST, place, turn

LONG_S = 200.0
CONTEXT = multiprocessing.get_context("fork")


def take_turns(folder: Path, alone: bool, here, wrong) -> None:
    for _ in range(60):
        with turn(folder, alone=alone):
            with here.get_lock():
                here.value += 1
                wrong.value |= alone and here.value > 1
            time.sleep(0.0005)
            with here.get_lock():
                wrong.value |= alone and here.value > 1
                here.value -= 1


def test_nothing_runs_beside_a_test_that_is_to_be_alone(tmp_path: Path) -> None:
    shared = CONTEXT.Value("i", 0), CONTEXT.Value("i", 0)
    processes = [
        CONTEXT.Process(target=take_turns, args=(tmp_path, alone, *shared))
        for alone in (False, False, True)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(LONG_S)
        assert process.exitcode == 0
    assert not shared[1].value


def hold_together(folder: Path, both: Barrier) -> None:
    with turn(folder, alone=False):
        both.wait(LONG_S)


def test_others_run_side_by_side(tmp_path: Path) -> None:
    both = CONTEXT.Barrier(2)
    processes = [CONTEXT.Process(target=hold_together, args=(tmp_path, both)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(LONG_S)
        assert process.exitcode == 0, "neither waited for the other to end"


def hold(folder: Path, alone: bool, is_in: Event, may_go: Event) -> None:
    with turn(folder, alone=alone):
        is_in.set()
        assert may_go.wait(LONG_S)


def test_who_waits_to_be_alone_is_not_passed_by(tmp_path: Path) -> None:
    events = [(CONTEXT.Event(), CONTEXT.Event()) for _ in range(3)]
    (first_in, first_go), (alone_in, alone_go), (late_in, late_go) = events
    first, alone, late = (
        CONTEXT.Process(target=hold, args=(tmp_path, is_alone, *pair))
        for is_alone, pair in zip((False, True, False), events, strict=True)
    )
    first.start()
    assert first_in.wait(LONG_S)
    alone.start()
    assert not alone_in.wait(0.2)
    late.start()
    assert not late_in.wait(0.2), "it would go on so for ever"
    first_go.set()
    assert alone_in.wait(LONG_S)
    assert not late_in.is_set()
    alone_go.set()
    assert late_in.wait(LONG_S)
    late_go.set()
    for process in (first, alone, late):
        process.join(LONG_S)
        assert process.exitcode == 0


def test_who_is_killed_lets_the_next_in(tmp_path: Path) -> None:
    is_in, may_go = CONTEXT.Event(), CONTEXT.Event()
    process = CONTEXT.Process(target=hold, args=(tmp_path, True, is_in, may_go))
    process.start()
    assert is_in.wait(LONG_S)
    process.kill()
    process.join(LONG_S)
    with turn(tmp_path, alone=True):
        pass


def test_every_name_is_that_of_tests(repo: Path) -> None:
    for name in (*FIRST, *ALONE):
        file, _, test = name.partition("::")
        assert list(repo.glob(f"{file}*")), name
        assert not test or f"def {test}(" in (repo / file).read_text(encoding="utf-8"), name
    files = (
        "tests/lab/demo/rl/test_rl_loop.py::test_a",
        "tests/lab/sim/test_core.py::test_b",
        "tests/cpp/memory/pool_test.cpp::test_c[asan]",
    )
    assert [place(one) for one in files] == [len(FIRST) + 1, len(FIRST), 0]
