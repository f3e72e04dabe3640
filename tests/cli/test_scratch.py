"""Folders of killed runs are swept, and no others."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from rose.cli.scratch import scratch_folder

RUN = """
import sys, tempfile
from rose.cli.scratch import scratch_folder
tempfile.tempdir = sys.argv[1]
with scratch_folder("rose-demo-") as folder:
    print(folder, flush=True)
    sys.stdin.read()
"""
ROOT = Path(__file__).resolve().parents[2]


def test_a_folder_is_swept_when_its_run_was_killed_and_not_before(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    others = {tmp_path / "rose-demo-mine", tmp_path / "rose-demo-link", tmp_path / "other"}
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / ".lock").touch()
    (tmp_path / "rose-demo-link").symlink_to("other")
    (tmp_path / "rose-demo-mine").mkdir()  # Without a lock: who knows whose it is.
    run = subprocess.Popen(
        [sys.executable, "-c", RUN, tmp_path],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with run:
        assert run.stdout is not None
        left = Path(run.stdout.readline().strip())
        (left / "checkpoint").touch()
        with scratch_folder("rose-demo-") as mine:
            assert {*tmp_path.iterdir()} == {*others, left, mine}
        run.kill()
        run.wait()
        assert {*tmp_path.iterdir()} == {*others, left}
        with scratch_folder("rose-demo-") as mine:
            assert {*tmp_path.iterdir()} == {*others, mine}
    assert {*tmp_path.iterdir()} == others


def test_a_folder_goes_when_its_run_fails(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(ZeroDivisionError), scratch_folder("rose-demo-"):
        raise ZeroDivisionError
    assert not [*tmp_path.iterdir()]
