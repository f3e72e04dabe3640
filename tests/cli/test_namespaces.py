"""Two machines, as two network namespaces with addresses of their own: TLS and tokens between them.

The engine runs in one namespace, the service and its client in the other.
"""

import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from rose.transfer.wire.security import TlsFiles
from tests.adapters.rig import truth
from tests.node.programs import BODY, ROOT, ROSE, Served
from tests.transfer.certificates import make_authority, make_certificate
from tests.waiting import LONG_S, wait_for

HERE, THERE = "10.77.0.1", "10.77.0.2"


def run(*words: str) -> subprocess.CompletedProcess:
    return subprocess.run(words, capture_output=True, text=True, timeout=LONG_S)


class Machines:
    """Two namespaces with a link between them."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self._stack = stack
        self.files: dict[str, TlsFiles] = {}  # each host's, of an authority of its own
        tag = secrets.token_hex(3)
        self.here, self.there = f"rose-{tag}a", f"rose-{tag}b"
        ends = f"ra{tag}", f"rb{tag}"
        for name in (self.here, self.there):
            made = run("ip", "netns", "add", name)
            if made.returncode:
                pytest.skip(f"network namespaces are not permitted here: {made.stderr.strip()}")
            stack.callback(run, "ip", "netns", "delete", name)
        link = run("ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        if link.returncode:
            pytest.skip(f"no link between namespaces: {link.stderr.strip()}")
        for name, end, address in ((self.here, ends[0], HERE), (self.there, ends[1], THERE)):
            for words in (
                f"ip link set {end} netns {name}",
                f"ip -n {name} addr add {address}/24 dev {end}",
                f"ip -n {name} link set {end} up",
                f"ip -n {name} link set lo up",
            ):
                assert run(*words.split()).returncode == 0, words
        for host in (HERE, THERE):
            place = folder / host
            place.mkdir()
            self.files[host] = make_certificate(make_authority(place), "own", reach=f"IP:{host}")

    def tls(self, host: str) -> tuple[str, ...]:
        """Return the options of a server."""
        return "--tls", str(self.files[host].certificate), str(self.files[host].key)

    def start(self, name: str, *words: str, token: str) -> Served:
        process = subprocess.Popen(
            ["ip", "netns", "exec", name, *ROSE, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "ROSE_TOKEN": token},
        )
        self._stack.callback(process.wait, LONG_S)
        self._stack.callback(process.kill)
        return Served(process, token)

    def ask(self, name: str, url: str, ca: Path, token: str, path: str = "/v1/completions") -> dict:
        """Send a request from a namespace."""
        text = (
            "import sys, ssl, json, httpx2\n"
            "url, ca, token, body = sys.argv[1:]\n"
            "context = ssl.create_default_context(cafile=ca)\n"
            "headers = {'authorization': 'Bearer ' + token}\n"
            "with httpx2.Client(verify=context, headers=headers, timeout=60) as client:\n"
            "    answer = client.post(url, json=json.loads(body))\n"
            "    print(json.dumps({'status': answer.status_code, **answer.json()}))\n"
        )
        words = ("ip", "netns", "exec", name, sys.executable, "-c", text)
        done = run(*words, url + path, str(ca), token, json.dumps(BODY))
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    if shutil.which("ip") is None or shutil.which("openssl") is None:
        pytest.skip("needs the programs ip and openssl")
    with ExitStack() as stack:
        yield Machines(stack, tmp_path)


def test_turns_cross_machines_under_tls_and_tokens(machines: Machines, tmp_path: Path) -> None:
    for name in ("right", "wrong"):
        (tmp_path / name).write_text(f"{name}-token")
    engine = machines.start(
        machines.there,
        *("engine", "trial", "--listen", f"{THERE}:9001"),
        *machines.tls(THERE),
        token="right-token",
    )
    assert engine.url == f"https://{THERE}:9001"

    def serve(port: int, token: str, authority: str) -> Served:
        return machines.start(
            machines.here,
            *("serve", "--rollouts", engine.url, "--listen", f"{HERE}:{port}"),
            *machines.tls(HERE),
            *("--rollouts-token", str(tmp_path / token)),
            *("--rollouts-ca", str(machines.files[authority].authority)),
            token="of-clients",
        )

    service = serve(9000, "right", THERE)
    ca = machines.files[HERE].authority
    answer = machines.ask(machines.there, service.url, ca, "of-clients")
    assert answer["status"] == 200, answer
    assert answer["choices"][0]["token_ids"] == truth()
    assert machines.ask(machines.there, service.url, ca, "right-token")["status"] == 401

    for port, token, authority, says in (
        (9002, "wrong", THERE, "the request must carry the service's bearer token"),
        (9003, "right", HERE, "certificate verify failed"),
    ):
        refused = serve(port, token, authority)
        wait_for(lambda refused=refused, says=says: says in refused.errors)
        (line,) = [one for one in refused.errors.splitlines() if says in one]
        assert line.startswith("rose: worker 0")
        assert "Traceback" not in refused.errors
        answer = machines.ask(machines.there, refused.url, ca, "of-clients")
        assert answer["status"] == 503
        assert refused.end() == 0
    assert service.end() == 0
