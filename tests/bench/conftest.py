"""What the tests of `make gpu` share: a run with a GPU that is not there."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.gpu import parts, run
from bench.gpu.parts import Findings, Suite


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., int]:
    """Run everything, or a part, into `tmp_path / out`; what needs a GPU is replaced."""
    gpu = {"gpu": "a GPU", "driver": "1.2", "cuda": "13.0", "temperature_c": 40}
    monkeypatch.setattr(run, "card", lambda: gpu)
    monkeypatch.setattr(parts, "build", lambda _out, _deadline: None)
    monkeypatch.setattr(parts, "demo", lambda _out, _deadline: Findings())
    monkeypatch.setattr(parts, "sanitizer", lambda _out, _deadline: Findings())

    def go(*suites: Suite, part: str | None = None, out: str = "out", **options: Any) -> int:
        arguments = ["--out", str(tmp_path / out), *(["--part", part] if part else [])]
        return run.main(arguments, suites=suites, test_files=[], **options)

    return go
