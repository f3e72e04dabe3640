"""A program takes its place before it does anything else; each in a process of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

# The programs are forks of one that has imported all they need and has no threads yet.
PROGRAM = """
import json, os, sys
import torch
from rose.errors import InvalidArgument
from rose.node.place import take_place
for cores, is_background in json.loads(sys.argv[1]):
    if child := os.fork():
        os.waitpid(child, 0)
        continue
    try:
        take_place(frozenset(cores), is_background=is_background)
    except InvalidArgument as error:
        found = str(error)
    else:
        is_idle = os.sched_getscheduler(0) == os.SCHED_IDLE
        found = [sorted(os.sched_getaffinity(0)), is_idle, torch.get_num_threads()]
    os.write(1, json.dumps(found).encode() + b"\\n")
    os._exit(0)
"""
CORE = min(os.sched_getaffinity(0))
CASES: list[tuple[list[int], bool]] = [([CORE], True), ([], False), ([4095], False)]


@pytest.fixture(scope="module")
def place() -> Callable[[list[int], bool], Any]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(CASES)],
        capture_output=True,
        check=True,
        timeout=120,
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return lambda *case: found[CASES.index(case)]


def test_a_program_runs_on_its_cores_with_as_many_threads_and_in_spare_time(place) -> None:
    assert place([CORE], True) == [[CORE], True, 1]


def test_a_program_without_a_place_stays_where_it_is(place) -> None:
    cores, is_idle, _ = place([], False)
    assert cores == sorted(os.sched_getaffinity(0))
    assert is_idle == (os.sched_getscheduler(0) == os.SCHED_IDLE)


def test_cores_that_there_are_not_are_refused(place) -> None:
    assert "cores [4095]" in place([4095], False)
