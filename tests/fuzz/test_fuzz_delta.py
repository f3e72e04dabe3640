"""The fuzz target of deltas: it takes sound frames, finds planted faults, and survives a while."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.transfer import delta_pack
from tests.fuzz import fuzz_delta
from tests.vectors.delta_v2 import changed


def frames() -> list[bytes]:
    made = []
    for width in (8, 16, 32):
        for density in (0.01, 0.4, 1.0):
            new, old = changed(
                np.random.default_rng(width), 300, density=density, steps=0.7, width=width
            )
            made.append(delta_pack(new, old).to_bytes())
    return made


def test_sound_frames_reach_everything() -> None:
    for frame in frames():
        assert fuzz_delta.try_frame(frame)
        assert fuzz_delta.try_frame(fuzz_delta.sealed(frame))


@given(st.sampled_from(frames()), st.data())
def test_damaged_frames_with_right_checksums_change_nothing(
    frame: bytes, data: st.DataObject
) -> None:
    content = bytearray(frame)
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    cut = data.draw(st.integers(fuzz_delta.HEADER_BYTES, len(content)))
    fuzz_delta.one_input(b"\xff" + bytes(content[:cut]))
    fuzz_delta.one_input(b"\x00" + bytes(content))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_fuzzing_for_a_while_finds_nothing(repo: Path, tmp_path: Path) -> None:
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("atheris is not installed: pip install rose-rl[fuzz]")
    for i, frame in enumerate(frames()):
        (tmp_path / str(i)).write_bytes(b"\xff" + frame)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.fuzz.fuzz_delta",
            "-runs=50000",
            "-max_len=4096",
            str(tmp_path),
        ],
        cwd=repo,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "Done 50000 runs" in done.stderr
