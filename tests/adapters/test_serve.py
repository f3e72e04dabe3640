"""`rose serve`: engines by URL or from a file, trial workers, its end, and what it refuses."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest
from click.testing import CliRunner

from rose.cli.serve import serve
from rose.errors import InvalidArgument
from tests.adapters.rig import BODY, truth
from tests.fleet.programs import free_port
from tests.node.programs import BODY as ASKED
from tests.node.programs import ROOT, started
from tests.waiting import wait_for

ANY = ("--listen", "127.0.0.1:0")
TRIAL = ("engine", "trial", *ANY)


def test_the_command_serves_until_it_is_told_to_end(repo) -> None:
    command = [sys.executable, "-m", "rose.cli.main", "serve", "--rollouts", "trial:2"]
    with subprocess.Popen(
        [*command, *ANY, "--model", "m"],
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
        assert process.wait(60) == 0


def test_an_engine_by_its_url_gives_the_tokens_that_it_gives_directly(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("of-the-engine\n")
    with started(*TRIAL, token="of-the-engine") as engine:
        words = ("serve", "--rollouts", engine.url, "--rollouts-token", str(token), *ANY)
        with started(*words, token="of clients") as service:
            assert service.line[2] == "workers=1"
            wait_for(service.is_well)
            assert service.tokens() == engine.tokens() == truth()
            with service.client.stream(
                "POST", "/v1/completions", json={**ASKED, "max_tokens": 100_000, "stream": True}
            ) as stream:
                lines = stream.iter_lines()
                assert next(lines).startswith("data: ")
                assert service.end() == 0
                assert any('"code":503' in line for line in lines)
            assert "Traceback" not in service.errors
            wait_for(lambda: engine.get("/server_info")["rose"]["sequences"] == 0)


def test_a_restarted_engine_is_joined_again_and_a_lost_one_is_503(tmp_path: Path) -> None:
    with started(*TRIAL) as first:
        address = first.url.removeprefix("http://")
        with started("serve", "--rollouts", first.url, *ANY) as service:
            wait_for(service.is_well)
            first.process.kill()
            wait_for(lambda: not service.is_well())
            assert service.client.post("/v1/completions", json=ASKED).status_code == 503
            with started("engine", "trial", "--listen", address):
                wait_for(service.is_well)
                assert service.tokens() == truth()


def test_an_engine_that_comes_later_gives_the_model_its_name() -> None:
    address = f"127.0.0.1:{free_port()}"
    with started("serve", "--rollouts", f"http://{address}", *ANY) as service:
        words = ("--listen", address, "--served-model-name", "late")
        with started("engine", "trial", *words):
            wait_for(service.is_well)
            assert service.get("/v1/models")["data"][0]["id"] == "late"
            said = service.client.post("/v1/completions", json={**ASKED, "model": "late"})
            assert said.json()["model"] == "late"


def test_the_example_of_a_file_runs_and_its_killed_engine_comes_back(tmp_path: Path) -> None:
    text = (ROOT / "examples/fleet.yaml").read_text()
    assert "listen: 127.0.0.1:8500" in text
    path = tmp_path / "fleet.yaml"
    path.write_text(text.replace("127.0.0.1:8500", "127.0.0.1:0").replace("../build/", ""))
    with started("serve", "--start", str(path)) as service:
        assert service.line[2] == "workers=2"
        wait_for(service.is_well)
        before = service.tokens()
        group = children(service.process.pid)
        assert len(group) == 2
        os.kill(group[0], signal.SIGKILL)
        assert service.tokens() == before
        wait_for(lambda: len(children(service.process.pid)) == 2)
        assert service.end() == 0
        assert not any(Path(f"/proc/{pid}").exists() for pid in group)
    assert {one.name for one in (tmp_path / "fleet-logs").iterdir()} == {
        "dedicated-0.log",
        "dedicated-1.log",
    }


def children(pid: int) -> list[int]:
    """Return the living children of a process."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(one) for one in found]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("", "needs --rollouts URL, or --start FILE"),
        ("--rollouts trial:0", "trial workers must be 1 to 64"),
        ("--rollouts trial:x", "trial workers must be 1 to 64"),
        ("--rollouts trial:65", "trial workers must be 1 to 64"),
        ("--rollouts worker.json", "the URL of an engine must be like"),
        ("--rollouts trial --tls c k", "ROSE_TOKEN must be set"),
        ("--rollouts trial --listen 0.0.0.0:0", "loopback"),
        ("--rollouts trial --weights 127.0.0.1:5", "must be given together"),
        ("--rollouts http://127.0.0.1:1 --rollouts-token missing", "cannot read missing"),
        ("--rollouts https://127.0.0.1:1 --rollouts-ca missing", "must hold certificates"),
        ("--start missing", "cannot read missing"),
        ("--start x --model m", "--model must be in the file"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, says) -> None:
    before = signal.getsignal(signal.SIGINT)
    done = CliRunner(env={"ROSE_TOKEN": ""}).invoke(serve, options.split())
    assert isinstance(done.exception, InvalidArgument)
    assert says in str(done.exception)
    assert signal.getsignal(signal.SIGINT) == before


def test_a_file_that_breaks_a_rule_is_one_sentence_and_starts_nothing(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text("engines: [{name: a, model: trial, seets: 3}]")
    done = subprocess.run(
        [sys.executable, "-m", "rose.cli.main", "serve", "--start", str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "unknown field `seets`" in done.stderr
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.slow  # transformers takes long to import
def test_a_folder_without_a_tokenizer_is_refused(tmp_path) -> None:
    options = ["--rollouts", "trial", "--tokenizer", str(tmp_path), *ANY]
    done = CliRunner(env={"ROSE_TOKEN": ""}).invoke(serve, options)
    assert isinstance(done.exception, InvalidArgument)
    assert "has no tokenizer" in str(done.exception)
