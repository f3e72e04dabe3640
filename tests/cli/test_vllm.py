"""`rose vllm` turns into vLLM's own command, with rose's parts in it; nothing of vLLM runs here."""

import importlib.metadata
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rose.cli.main import main
from rose.engines.vllm.settings import ServingSettings
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

    @property
    def options(self) -> Sequence[str]:
        """The arguments of vLLM's own command."""
        assert self.command[1:3] == ["-m", "rose.engines.vllm.start"]
        return self.command[4:]

    @property
    def settings(self) -> dict[str, Any]:
        return dict(json.loads(self.command[3])["settings"])

    @property
    def defaults(self) -> dict[str, Any]:
        return dict(json.loads(self.command[3])["defaults"])


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
    assert started.options == ["serve", "some/model", "--port", "8001", "--seed=3"]
    assert (started.settings["listen"], started.settings["slab_bytes"]) == ("lend.sock", 4 << 20)
    lending = "rose.engines.vllm.serving_engine"
    assert started.defaults["scheduler_cls"] == f"{lending}.LendingScheduler"
    assert started.defaults["worker_cls"] == f"{lending}.ServingWorker"


def test_the_engine_gets_time_to_end_its_log(started: Started) -> None:
    assert main(["vllm", "serve", "model"]) == 0
    assert started.defaults["shutdown_timeout"] > 0


@pytest.mark.parametrize(
    "option",
    [
        "--ttft-ms=nan",
        "--tpot-ms=0",
        "--slowdown=nan",
        "--revoke-ms=inf",
        "--epsilon=2",
        "--isolation=all",
        "--log=missing/log",
        "--log=pipe",
    ],
)
def test_bad_values_are_refused_before_the_engine_starts(
    started: Started,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    option: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    assert main(["vllm", "serve", "some/model", option]) == 2
    assert not started.command
    assert len(capfd.readouterr().err.splitlines()) == 1


def test_isolation_reaches_the_serving_engine(started: Started) -> None:
    assert main(["vllm", "serve", "model"]) == 0
    assert ServingSettings(**started.settings).isolation == "shared"
    assert main(["vllm", "serve", "model", "--isolation", "mapped"]) == 0
    assert ServingSettings(**started.settings).isolation == "mapped"


def test_an_observer_has_no_socket(started: Started) -> None:
    assert main(["vllm", "serve", "model", "--observe"]) == 0
    assert started.settings["listen"] is None


def test_a_users_list_of_plug_ins_is_extended(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", "mine")
    assert main(["vllm", "serve", "model"]) == 0
    assert started.environment["VLLM_PLUGINS"] == "mine,rose"


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
    assert started.defaults["kv_cache_memory_bytes"] == 16 * SLAB
    assert started.defaults["enforce_eager"] is True
    assert started.settings == {"attach": str(path), "events": ""}


def test_a_second_borrower_is_refused_before_it_starts(
    started: Started, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lend.sock"
    with CoServing.open("cpu", pool_bytes=18 * SLAB, slab_bytes=SLAB) as device:
        slo = SLO(ttft_ms=20_000, tpot_ms=1000)
        device.serving(GEOMETRY, slo=slo, step_tokens=16, request_tokens=32)
        device.listen(path)
        with CoServing.attach(path) as first:
            first.rollout(GEOMETRY, limit_bytes=4 * SLAB)
            assert main(["vllm", "rollout", "model", "--attach", str(path)]) == 2
        assert "lends to another borrower: stop that borrower first" in capsys.readouterr().err
    assert not started.command


def test_a_borrower_needs_somebody_who_listens(
    started: Started, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["vllm", "rollout", "model", "--attach", str(tmp_path / "nobody")]) == 2
    said = capsys.readouterr().err
    assert "nobody" in said
    assert said.endswith("start the server that lends first\n")
    assert not started.command


def without_transformers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let `rose vllm try` make no models; returns their paths."""
    made: list[str] = []
    tiny = ModuleType("rose.engines.vllm.tiny")
    vars(tiny)["make_model"] = lambda path, **_: made.append(str(path))
    monkeypatch.setitem(sys.modules, tiny.__name__, tiny)
    return made


def test_try_prints_the_commands_of_the_docs(
    repo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = without_transformers(monkeypatch)
    assert main(["vllm", "try"]) == 0
    assert made == ["rose-try/served", "rose-try/rollout"]
    printed = capsys.readouterr().out
    assert f"```\n{printed}```\n" in (repo / "docs" / "vllm.md").read_text(encoding="utf-8")
    assert "rose vllm try" in (repo / "README.md").read_text(encoding="utf-8")


def test_a_folder_to_try_in_may_have_any_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without_transformers(monkeypatch)
    assert main(["vllm", "try", "my models"]) == 0
    assert "rose vllm serve 'my models'/served " in capsys.readouterr().out
