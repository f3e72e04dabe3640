"""The examples run, and what they claim holds."""

import random
import re
import runpy
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

import rose
from rose.cli.verify import verify
from tests.cpp.rooms import build, folder_of
from tests.executor.conftest import CALM
from tests.known_model import confirm
from tests.load import load


@pytest.fixture(scope="module")
def lend(repo):
    return load(repo / "examples" / "lend.py")


def alone(lend, model, prompt: list[int], tokens: int) -> list[int]:
    """Return what a model says with a KV cache of its own."""
    blocks = -(-(len(prompt) + tokens) // lend.BLOCK)
    kv = [np.zeros((blocks, lend.BLOCK * 2 * lend.WIDTH), np.float32) for _ in model.weights]
    engine = SimpleNamespace(kv=SimpleNamespace(views=lambda _: kv))
    row = SimpleNamespace(computed=0, blocks=list(range(blocks)))
    ids = list(prompt)
    for _ in range(tokens):
        token = model.forward(engine, row, ids)
        row.computed = len(ids)
        ids.append(token)
    return ids


def test_example_runs(repo) -> None:
    done = subprocess.run(
        [sys.executable, "examples/lend.py"], cwd=repo, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("10 rollouts beside ")
    assert done.stdout.endswith("gave back: None\n")


def test_engine_in_cpp_lends_without_python_and_its_log_verifies(tmp_path: Path) -> None:
    built = build(["engine"], "asan")
    assert built.returncode == 0, built.stdout
    log = tmp_path / "engine.log"
    program = folder_of("asan") / "engine"
    done = subprocess.run([program, log], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(
        r"[1-9]\d* slabs and [1-9]\d* segments lent, [1-9]\d* slabs came back\n", done.stdout
    )
    verified = CliRunner().invoke(verify, [str(log)])
    assert verified.exit_code == 0, verified.output


def test_example_of_a_borrower_in_a_process_of_its_own_runs(repo) -> None:
    done = subprocess.run(
        [sys.executable, "examples/borrow.py"],
        cwd=repo,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("505 rollout tokens\n")
    assert done.stdout.endswith("gave back: None\n")


def said_by(example: Path, capsys) -> str:
    """Run an example in this process, which may have imported torch already."""
    runpy.run_path(str(example), run_name="__main__")
    return capsys.readouterr().out


def test_example_of_attached_engines_runs(repo, capsys) -> None:
    said = said_by(repo / "examples" / "attach.py", capsys)
    assert said.startswith("128 rollout tokens beside 10 answers;")
    assert said.endswith("gave back: None\n")


def test_example_of_weights_runs(repo, capsys) -> None:
    said = said_by(repo / "examples" / "weights.py", capsys)
    assert [line.split(":")[0] for line in said.splitlines()] == [
        *(f"version {n}" for n in range(2, 7)),
        "equal bit for bit",
    ]
    assert said.endswith("True\n")


def test_example_of_shards_commits_on_both_ranks_together(repo) -> None:
    program = [sys.executable, str(repo / "examples" / "shards.py")]
    done = subprocess.run(
        program, cwd=repo, capture_output=True, text=True, timeout=200, check=True
    )
    said = re.findall(r"rank (\d) of the engine: (version \d+, digest \w{32})", done.stdout)
    held = [{what for rank, what in said if rank == at} for at in "01"]
    assert held[0] == held[1]
    assert len(held[0]) == 4


def test_a_toy_engine_gives_the_same_answers_with_rose_under_it(
    repo, tmp_path, monkeypatch
) -> None:
    monkeypatch.syspath_prepend(repo / "examples")
    log = tmp_path / "run.log"
    answers = load(repo / "examples" / "engine.py").main(str(log))
    assert answers == load(repo / "examples" / "toy_engine.py").main()
    verified = CliRunner().invoke(verify, [str(log)])
    assert verified.exit_code == 0
    assert "Every certificate holds." in verified.output


def test_example_of_rollouts_runs(repo, capsys) -> None:
    said = said_by(repo / "examples" / "rollouts.py", capsys)
    assert said.endswith(" turns resumed elsewhere, no token lost\n")


def test_example_of_the_rollout_service_runs(repo, monkeypatch, capsys) -> None:
    pytest.importorskip("fastapi")
    monkeypatch.syspath_prepend(repo / "examples")
    said = said_by(repo / "examples" / "rollout_service.py", capsys)
    assert said.startswith("12 answers, ")
    assert said.endswith(" resumed elsewhere, no token lost\n")


def test_answers_and_rollouts_are_those_of_each_model_alone(lend) -> None:
    served, rolled_out = lend.Model(layers=2), lend.Model(layers=6)
    policy = rose.Policy(**{**CALM, "revoke_ms": 200.0, "regrow_after_ms": 1.0})
    slo = rose.SLO(ttft_ms=20_000, tpot_ms=1000)
    with rose.open("cpu", slo=slo, pool_bytes=256 << 20, policy=policy) as device:
        serving = device.serving(served.config, step_tokens=256, request_tokens=512)
        borrower = device.borrower(rolled_out.config)
        confirm(device.executor._parts.model, 256)
        rollouts: list[list[int]] = []
        thread = lend.Thread(
            target=lambda: rollouts.extend(
                lend.roll_out(borrower, rolled_out, [seed], 60) for seed in range(4)
            )
        )
        thread.start()
        draw = random.Random(1)
        while thread.is_alive():
            prompt = draw.choices(range(lend.VOCAB), k=draw.randrange(1, 200))
            said = lend.answer(serving, served, prompt, 4)
            assert said == alone(lend, served, prompt, 4)
            # As when many requests have come: serving wants all that the borrower has.
            device.executor.lender.take_back(8)
            time.sleep(0.03)
    assert rollouts == [alone(lend, rolled_out, [seed], 60) for seed in range(4)]
    assert device.executor.lender.collector.pressures[0] > 0


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_each_step_is_sent_between_arrays_of_a_library(repo, library: str, capsys) -> None:
    pytest.importorskip(library)
    sizes = load(repo / "examples" / "deltas.py").main(library)
    said = capsys.readouterr().out
    assert said.count("10000 of 1000000 weights") == len(sizes) == 3
    assert max(sizes) < 4_000_000 / 100
    assert (said.count("True"), said.count("False")) == (2, 0)


class Foreign:
    """An array of a library that has DLPack and nothing else in common with NumPy."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()

    def __dlpack__(self, **options) -> object:
        return self._array.__dlpack__(**options)


def test_arrays_that_have_dlpack_only_are_changed_where_they_lie(repo) -> None:
    deltas = load(repo / "examples" / "deltas.py")
    weights = np.linspace(-1, 1, 1001, dtype=np.float32)
    shadow, held = np.zeros_like(weights), np.zeros_like(weights)
    deltas.receive(Foreign(held), deltas.send(Foreign(weights), Foreign(shadow)))
    assert held.tolist() == shadow.tolist() == weights.tolist()
