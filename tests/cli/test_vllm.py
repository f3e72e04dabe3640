"""`rose vllm` turns into vLLM's own command, with rose's parts in it; nothing of vLLM runs here."""

import importlib.metadata
import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from rose.cli.main import main
from rose.executor import SLO, CoServing, KVGeometry

SLAB = 4096
GEOMETRY = KVGeometry(layers=1, block_tokens=16, bytes_per_token=64)


class Started:
    """The program that would have replaced this one."""

    def __init__(self) -> None:
        self.command: Sequence[str] = ()
        self.environment: dict[str, str] = {}

    def __call__(self, _program: str, command: Sequence[str], environment: dict[str, str]) -> None:
        self.command, self.environment = command, environment

    def option(self, name: str) -> str:
        return self.command[self.command.index(name) + 1]

    @property
    def additional(self) -> dict[str, dict[str, object]]:
        found: dict[str, dict[str, object]] = json.loads(self.option("--additional-config"))
        return found


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    started = Started()
    monkeypatch.setattr(os, "execvpe", started)
    monkeypatch.setattr(importlib.metadata, "version", {"vllm": "0.33.0"}.__getitem__)
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    return started


def test_options_of_vllm_go_to_vllm_and_roses_own_do_not(started: Started) -> None:
    options = ["--port", "8001", "--listen", "lend.sock", "--slab-mib", "4", "--seed=3"]
    assert main(["vllm", "serve", "some/model", *options]) == 0
    assert started.command[1:5] == ["-m", "vllm.entrypoints.cli.main", "serve", "some/model"]
    assert started.option("--port") == "8001"
    assert "--seed=3" in started.command
    assert "--listen" not in started.command
    settings = started.additional["rose"]
    assert (settings["listen"], settings["slab_bytes"]) == ("lend.sock", 4 << 20)
    assert started.option("--scheduler-cls") == "rose.engines.vllm.serving_engine.LendingScheduler"
    assert started.option("--worker-cls") == "rose.engines.vllm.serving_engine.ServingWorker"


def test_an_observer_has_no_socket(started: Started) -> None:
    assert main(["vllm", "serve", "model", "--observe"]) == 0
    assert started.additional["rose"]["listen"] is None


def test_a_users_additional_config_stays(started: Started) -> None:
    assert main(["vllm", "serve", "model", "--additional-config", '{"mine": {"a": 1}}']) == 0
    assert started.additional["mine"] == {"a": 1}
    assert "rose" in started.additional
    assert started.command.count("--additional-config") == 1


def test_a_users_list_of_plug_ins_is_extended(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", "mine")
    assert main(["vllm", "serve", "model"]) == 0
    assert started.environment["VLLM_PLUGINS"] == "mine,rose"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["-tp", "2"], "the tensor parallel size must be 1"),
        (["--pipeline-parallel-size=2"], "the pipeline parallel size must be 1"),
        (["--scheduler-cls", "mine.Scheduler"], "rose sets --scheduler-cls itself"),
        (["--additional-config", "[1]"], "must be a JSON object"),
    ],
)
def test_what_rose_cannot_do_is_refused(
    started: Started, capsys: pytest.CaptureFixture[str], options: list[str], why: str
) -> None:
    assert main(["vllm", "serve", "model", *options]) == 2
    assert why in capsys.readouterr().err
    assert not started.command


def test_another_version_is_refused_with_those_that_are_supported(
    started: Started, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", {"vllm": "0.34.1"}.__getitem__)
    assert main(["vllm", "serve", "model"]) == 2
    assert "vLLM 0.34.1 is not supported: install 0.32 or 0.33" in capsys.readouterr().err
    assert not started.command


def test_a_borrower_may_have_the_pool_of_who_listens(started: Started, tmp_path: Path) -> None:
    path = tmp_path / "lend.sock"
    with CoServing.open("cpu", pool_bytes=18 * SLAB, slab_bytes=SLAB) as device:
        slo = SLO(ttft_ms=20_000, tpot_ms=1000)
        device.serving(GEOMETRY, slo=slo, step_tokens=16, request_tokens=32)
        device.listen(path)
        assert main(["vllm", "rollout", "model", "--attach", str(path)]) == 0
    assert started.option("--kv-cache-memory-bytes") == str(16 * SLAB)
    assert "--enforce-eager" in started.command
    assert started.additional["rose"] == {"attach": str(path)}


def test_a_borrower_needs_somebody_who_listens(
    started: Started, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["vllm", "rollout", "model", "--attach", str(tmp_path / "nobody")]) == 2
    assert "nobody" in capsys.readouterr().err
    assert not started.command
