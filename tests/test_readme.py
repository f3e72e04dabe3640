"""What the README shows is what works."""

import re
import time
from pathlib import Path

import pytest

from rose.executor import KVGeometry, Refusal
from rose.executor.revocation import Revocation

README = Path(__file__).parent.parent / "README.md"


def test_readme_fits_its_limit() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 120


def test_python_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    layers: list[int] = []

    def free_slabs(revocation: Revocation) -> None:
        revocation.begin(())

    def run_layers(between) -> None:
        for layer in range(4):
            between()
            layers.append(layer)

    given = {
        "serving_kv": KVGeometry(layers=4, block_tokens=16, bytes_per_token=4096),
        "rollout_kv": KVGeometry(layers=6, block_tokens=32, bytes_per_token=6144),
        "free_slabs": free_slabs,
        "request_id": "a",
        "n": 100,
        "run": lambda: None,
        "run_batch": lambda _batch: time.sleep(0.001),
        "run_layers": run_layers,
        "Refusal": Refusal,
    }
    exec(block, given)
    device = given["device"]
    assert layers == [0, 1, 2, 3]
    assert device.gave_back is None
    device.close()
    assert (tmp_path / "certificates.log").exists()
