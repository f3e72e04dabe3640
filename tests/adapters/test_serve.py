"""`rose serve --rollouts`: trial workers, workers of other processes, and what it refuses."""

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack

import httpx2
import pytest
from click.testing import CliRunner

from rose.adapters import TrialWorker
from rose.cli.serve import join, serve
from rose.errors import InvalidArgument
from rose.node.server import WorkerServer
from rose.scheduler.worker import WorkerKind
from tests.adapters.rig import BODY, rigged, truth, until


def test_the_command_serves_until_it_is_told_to_end(repo) -> None:
    command = [sys.executable, "-m", "rose.cli.main", "serve", "--rollouts", "trial:2"]
    with subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0", "--model", "m"],
        cwd=repo,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "ROSE_TOKEN": "secret", "PYTHONUNBUFFERED": "1"},
    ) as process:
        try:
            word, url, workers = process.stdout.readline().split()
            assert (word, workers) == ("listening:", "workers=2")
            with httpx2.Client(base_url=url, headers={"authorization": "Bearer secret"}) as client:
                said = client.post("/v1/completions", json={**BODY, "model": "m"}).json()
                assert said["choices"][0]["token_ids"] == truth()
                client.post("/start_weight_update")
                assert client.post("/finish_weight_update").json()["weight_version"] == 1
                said = client.post("/v1/completions", json={**BODY, "weight_version": {"min": 1}})
                assert said.json()["choices"][0]["token_ids"] == truth(version=1)
                del client.headers["authorization"]
                assert client.get("/v1/models").status_code == 401
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


async def test_a_worker_of_another_process_joins_by_the_line_that_it_wrote(tmp_path) -> None:
    def make(on_event):
        worker = TrialWorker(3, WorkerKind.BORROWED, on_event, step_s=0.001)
        worker.grant()
        return parts.enter_context(worker)

    with ExitStack() as parts:
        server = parts.enter_context(WorkerServer(make, token="t"))
        line = {
            "address": server.address,
            "token": "t",
            "worker": 3,
            "kind": "borrowed",
            "seats": 4,
            "prefill_tokens_per_s": 1e5,
            "decode_step_ms": 1.0,
            "decode_ms_per_sequence": 0.0,
            "version": 0,
        }
        path = tmp_path / "worker.json"
        path.write_text(json.dumps(line) + "\n")
        async with rigged(0) as rig:
            with ExitStack() as joined:
                assert await join(rig.service, str(path), 0, joined) == []
                said = (await rig.post("/v1/completions", BODY)).json()
                assert said["choices"][0]["token_ids"] == truth()
            server.close()
            await until(lambda: rig.service.sequence_count() == 0)


@pytest.mark.parametrize("source", ["trial:0", "trial:x", "trial:65", "missing.json"])
async def test_workers_that_are_none_are_refused(source) -> None:
    async with rigged(0) as rig:
        with ExitStack() as parts, pytest.raises(InvalidArgument):
            await join(rig.service, source, 0, parts)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"worker": 1}', '"a"'])
async def test_a_file_that_is_no_line_of_a_worker_is_refused(tmp_path, text) -> None:
    path = tmp_path / "worker.json"
    path.write_text(text)
    async with rigged(0) as rig:
        with ExitStack() as parts, pytest.raises(InvalidArgument, match="must hold the line"):
            await join(rig.service, str(path), 0, parts)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--tls", "c", "k"], "ROSE_TOKEN must be set"),
        (["--listen", "0.0.0.0:0"], "loopback"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, says) -> None:
    done = CliRunner(env={"ROSE_TOKEN": ""}).invoke(serve, ["--rollouts", "trial", *options])
    assert isinstance(done.exception, InvalidArgument)
    assert says in str(done.exception)


@pytest.mark.slow  # transformers takes long to import
def test_a_folder_without_a_tokenizer_is_refused(tmp_path) -> None:
    options = ["--rollouts", "trial", "--tokenizer", str(tmp_path)]
    done = CliRunner(env={"ROSE_TOKEN": ""}).invoke(serve, options)
    assert isinstance(done.exception, InvalidArgument)
    assert "has no tokenizer" in str(done.exception)
