"""A program takes its place before it does anything else; each in a process of its own."""

import json
import os
import subprocess
import sys

import pytest

PROGRAM = """
import json, os, sys
from rose.errors import InvalidArgument
from rose.node.place import take_place
cores, is_background = json.loads(sys.argv[1])
try:
    take_place(frozenset(cores), is_background=is_background)
except InvalidArgument as error:
    print(json.dumps(str(error)))
else:
    import torch
    is_idle = os.sched_getscheduler(0) == os.SCHED_IDLE
    print(json.dumps([sorted(os.sched_getaffinity(0)), is_idle, torch.get_num_threads()]))
"""


def place(cores: list[int], *, is_background: bool):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps([cores, is_background])],
        capture_output=True,
        check=True,
        timeout=120,
    )
    return json.loads(done.stdout)


def test_a_program_runs_on_its_cores_with_as_many_threads_and_in_spare_time() -> None:
    core = min(os.sched_getaffinity(0))
    assert place([core], is_background=True) == [[core], True, 1]


def test_a_program_without_a_place_stays_where_it_is() -> None:
    cores, is_idle, _ = place([], is_background=False)
    assert cores == sorted(os.sched_getaffinity(0))
    assert is_idle == (os.sched_getscheduler(0) == os.SCHED_IDLE)


@pytest.mark.parametrize("cores", [[4095]])
def test_cores_that_there_are_not_are_refused(cores) -> None:
    assert "cores [4095]" in place(cores, is_background=False)
