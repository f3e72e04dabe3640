"""Two real vLLM servers under rose, from the environment that `make vllm-env` makes."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
PYTHON: Final = ROOT / ".venv-vllm" / "bin" / "python"
START_S: Final = 400.0
ANSWERS_S: Final = 1800.0  # for all answers of a client
STOP_S: Final = 60.0  # for a process that was asked to end, or was killed
MODEL_TOKENS: Final = 1024
STEP_TOKENS: Final = 256
KV_BYTES: Final = 64 << 20
ENVIRONMENT: Final = {
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_SERVER_DEV_MODE": "1",  # routes of RL loops: pause, resume, weights
}
OPTIONS: Final = (
    *("--dtype", "float32", "--block-size", "32", "--max-num-seqs", "16"),
    *("--max-model-len", str(MODEL_TOKENS), "--max-num-batched-tokens", str(STEP_TOKENS)),
)

Answer = dict[str, Any]


def prompts(count: int, *, tokens: int) -> list[list[int]]:
    """Return `count` prompts of `tokens` to `tokens` + 63 tokens; 1,280 of them differ."""
    return [
        [(one * 7 + place * (1 + one % 5)) % 256 for place in range(tokens + one % 64)]
        for one in range(count)
    ]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Server:
    """A server, the process of its engine, and its output. After its end it can start again."""

    def __init__(self, *command: str, log: Path, core: int | None = None) -> None:
        self.port = free_port()
        self._command = [
            *(() if core is None else ("taskset", "-c", str(core))),
            *(str(PYTHON), "-m", *command, *OPTIONS, "--port", str(self.port)),
        ]
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.launch()
        self.wait_until_up()

    def launch(self) -> None:
        """Start the server's process."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                env={**os.environ, **ENVIRONMENT},
                cwd=ROOT,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_until_up(self) -> None:
        """Wait until the server answers."""
        deadline_s = time.monotonic() + START_S
        while not self._is_up():
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"no answer at port {self.port} after {START_S:g} s")
            time.sleep(0.2)

    def _is_up(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(f"the server has ended: {self.log.read_text()[-4000:]}")
        return self.is_healthy()

    def is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5) as said:
                return bool(said.status == 200)
        except OSError:
            return False

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as said:
            return str(said.read().decode())

    def post(self, path: str, **body: object) -> None:
        """Call a route with a JSON object."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=300):
            pass

    @property
    def status(self) -> Mapping[str, Any]:
        return dict(json.loads(self.get("/rose/status")))

    def counter(self, name: str) -> float:
        """Return the sum of a counter of vLLM's."""
        found = re.findall(rf"^{name}(?:{{.*}})? ([\d.e+]+)$", self.get("/metrics"), re.MULTILINE)
        return sum(map(float, found))

    @property
    def engine_pid(self) -> int:
        """The process that runs the model."""
        if self._process is None:
            raise RuntimeError("the server does not run")
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        for child in children.read_text().split():
            if "EngineCore" in Path(f"/proc/{child}/cmdline").read_text():
                return int(child)
        raise RuntimeError("the server has no engine")

    def signal_engine(self, which: signal.Signals) -> None:
        os.kill(self.engine_pid, which)

    def signal_all(self, which: signal.Signals) -> None:
        """Send a signal to all processes of the server, as Ctrl-C does."""
        if self._process is not None:
            os.killpg(self._process.pid, which)

    def wait_until_ended(self) -> None:
        """Wait until the server's first process has ended by itself."""
        if self._process is not None:
            self._process.wait(STOP_S)
            self._process = None

    def kill(self) -> None:
        """Kill all processes of the server."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(STOP_S)
            self._process = None

    def stop(self) -> None:
        """Ask the server to end, and wait for that."""
        if self._process is not None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_S)
            self.kill()


class Talk:
    """A client in a process of its own: it streams answers to prompts."""

    def __init__(
        self,
        server: Server,
        said: Sequence[Sequence[int]],
        *,
        tokens: int,
        gap_s: float = 0.0,
        cores: Iterable[int] = (),
    ) -> None:
        """Start.

        Args:
            server: server that the client asks.
            said: prompts, as token ids.
            tokens: length of each answer.
            gap_s: time between two starts; at most 16 answers are streamed at once.
            cores: cores on which the client runs; empty: all.
        """
        # A full pipe would block the client, so its output goes to a file.
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the client)
        with tempfile.TemporaryFile() as asked:
            asked.write(json.dumps(said).encode())
            asked.seek(0)
            self._process = subprocess.Popen(
                [
                    *(("taskset", "-c", ",".join(map(str, cores))) if cores else ()),
                    *(str(PYTHON), str(ROOT / "bench" / "vllm_talk.py")),
                    *("--port", str(server.port), "--tokens", str(tokens)),
                    *("--at-once", "16", "--gap-s", str(gap_s)),
                ],
                env={**os.environ, **ENVIRONMENT},
                stdin=asked,
                stdout=self._said,
            )

    @property
    def is_over(self) -> bool:
        return self._process.poll() is not None

    def answers(self) -> list[Answer]:
        """Return the answers, in the order of the prompts."""
        self._process.wait(ANSWERS_S)
        self._said.seek(0)
        return [json.loads(line) for line in self._said]

    def tokens(self) -> list[list[int]]:
        """Return the tokens of each answer, which must have no error."""
        answers = self.answers()
        failures = [one["error"] for one in answers if one["error"]]
        if failures:
            raise RuntimeError(f"{len(failures)} of {len(answers)} answers failed: {failures[0]}")
        return [one["tokens"] for one in answers]

    def kill(self) -> None:
        """End the client without its answers."""
        self._process.kill()
        self._process.wait(STOP_S)
        self._said.close()
