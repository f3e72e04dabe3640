"""Borrowers that harm serving, each in a process of its own, and a serving engine that measures
the cost.

`python -m bench.harming KIND SOCKET` runs one borrower until it is killed.
"""

import ctypes
import mmap
import random
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from rose.errors import RoseError
from rose.executor import SLO, CoServing, KVGeometry, Policy, Quantum, StepBatch
from rose.executor.channel import Channel
from rose.executor.messages import Hello, Welcome
from rose.slo.log_file import read_log
from rose.slo.verify import Verification, verify_log
from rose.units import MIB, NS_PER_MS

KV: Final = KVGeometry(layers=1, block_tokens=16, bytes_per_token=4096)
STEP_S: Final = 0.003
STEPS: Final = 8  # of a request
STUCK_S: Final = 0.9
_END_S: Final = 30.0  # longest time until a killed borrower has ended
HONEST_S: Final = 0.005
_ROOT: Final = Path(__file__).resolve().parent.parent
_WAKE_ALL: Final = 2**31 - 1
_FUTEX: Final = 202  # the system call, on x86-64
_PASSED_AT, _RUNNING_AT = 20, 24  # words of the gate, see docs/protocol.md


# ---- borrowers -----------------------------------------------------------------------------------


def _gate_page(path: str) -> tuple[mmap.mmap, Channel]:
    """Attach like a borrower, as often as necessary, and map the gate's page only.

    Returns:
        The page, and the connection: the tenancy lasts until it is closed.
    """
    while True:
        try:
            channel = Channel.connect(path, timeout_s=30)
            channel.send(Hello(KV, 32 * MIB))
            answer, descriptors = channel.receive(timeout_s=30)
        except RoseError:
            answer, descriptors = None, []
        if isinstance(answer, Welcome):
            gate = descriptors[answer.descriptors.index("gate")]
            return mmap.mmap(gate, 4096), channel
        time.sleep(0.1)


def drip(path: str, run_s: str = "0.95") -> None:
    """Pretend to run one segment after another, each of which ends in time."""
    page, _channel = _gate_page(path)
    word = ctypes.addressof(ctypes.c_char.from_buffer(page)) + _RUNNING_AT
    libc = ctypes.CDLL(None)
    for passed in range(1 << 32):
        page[_PASSED_AT : _RUNNING_AT + 4] = struct.pack("<II", passed, 1)
        time.sleep(float(run_s))
        page[_RUNNING_AT : _RUNNING_AT + 4] = bytes(4)
        libc.syscall(_FUTEX, ctypes.c_void_p(word), 1, _WAKE_ALL, None, None, 0)
        time.sleep(0.001)


def scribble(path: str) -> None:
    """Write random bytes into the gate's words."""
    page, _channel = _gate_page(path)
    chance = random.Random(1)
    while True:
        at = chance.randrange(120)
        page[at : at + 8] = chance.randbytes(8)
        time.sleep(0.001)


def stuck(path: str) -> None:
    """Run segments that take far too long, by the public API."""
    _steps(path, STUCK_S)


def honest(path: str) -> None:
    """Run short segments; print the number of them every second."""
    _steps(path, HONEST_S)


def _steps(path: str, segment_s: float) -> None:
    with CoServing.attach(path) as device:
        _run(device.rollout(KV, limit_bytes=8 * MIB), segment_s)


def _run(lane: Any, segment_s: float) -> None:
    segments, said_s = 0, time.monotonic()
    while not lane.is_closed:
        match lane.try_step(timeout_ms=100):
            case Quantum() as quantum:
                with quantum:
                    time.sleep(segment_s)
                    segments += 1
            case refusal if refusal.segment is not None:
                _say("refused", refusal.segment.sentence)
        if time.monotonic() - said_s >= 1.0:
            _say("segments", segments)
            segments, said_s = 0, time.monotonic()


def _say(name: str, value: object) -> None:
    print(f"{name}={value}", flush=True)


BORROWERS: Final[dict[str, Callable[..., None]]] = {
    "drip": drip,
    "scribble": scribble,
    "stuck": stuck,
    "honest": honest,
}


class Supervisor:
    """Starts a borrower, and starts it again whenever it ends."""

    def __init__(self, kind: str, path: str, *arguments: str) -> None:
        self._command = [sys.executable, "-m", "bench.harming", kind, path, *arguments]
        self.starts = 0
        self.segments = 0
        self.refused: set[str] = set()
        self._process: subprocess.Popen[str] | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.is_set():
            self.starts += 1
            with subprocess.Popen(
                self._command, cwd=_ROOT, stdout=subprocess.PIPE, text=True
            ) as self._process:
                if self._stop.is_set():
                    self._process.kill()
                for line in self._process.stdout or ():
                    self._hear(line)

    def _hear(self, line: str) -> None:
        """Take over a report of the borrower."""
        name, value = line.rstrip("\n").split("=", 1)
        if name == "segments":
            self.segments += int(value)
        else:
            self.refused.add(value)

    def stop(self) -> None:
        """Kill the borrower."""
        self._stop.set()
        if self._process is not None:
            self._process.kill()
        self._thread.join(_END_S)


# ---- serving -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Harm:
    """Cost of a borrower to serving.

    Args:
        waits_ms: time of each wait for a segment, as the engine measured it.
        beyond_ms: sum of their parts beyond the certificates, as the engine measured them.
        verification: rose's own sums, verified from the log.
        gave_back: why lending ended, if it did.
        kills: why borrowers were killed.
        reading: the device's report at the end.
    """

    waits_ms: list[float]
    beyond_ms: float
    verification: Verification
    gave_back: str | None
    kills: tuple[str, ...]
    reading: dict[str, Any]

    @property
    def worst_ms(self) -> float:
        """Largest sum of excesses in ten minutes, by the log."""
        return self.verification.waits.worst_ns / NS_PER_MS


class MeasuredServing:
    """A serving engine whose steps sleep, and which measures its waits for segments."""

    def __init__(self, folder: Path, *, ttft_ms: float = 200.0, **policy: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log_path = folder / "log"
        self.path = str(folder / "socket")
        self.device = CoServing.open(
            "cpu",
            pool_bytes=34 * MIB,
            slab_bytes=MIB,
            log_path=self.log_path,
            policy=Policy(latency_prior_ms=(5.0, 0, 0, 0, 0), heartbeat_ttl_ms=5000.0, **policy),
        )
        self.lane = self.device.serving(
            KV,
            slo=SLO(ttft_ms=ttft_ms, tpot_ms=ttft_ms),
            reserve_bytes=4 * MIB,
            step_tokens=256,
            request_tokens=1024,
        )
        self.lane.warm_up(lambda _batch: time.sleep(STEP_S))
        self.device.listen(self.path)
        self._entries_ms: list[float] = []

    def serve(self, seconds: float, *, until: Callable[[], bool] = lambda: False) -> None:
        """Serve requests, one after another with short pauses."""
        chance = random.Random(7)
        end_s = time.monotonic() + seconds
        number = 0
        while time.monotonic() < end_s and not until():
            number += 1
            name = f"r{number}"
            self.lane.arrived(name, prompt_tokens=64)
            for index in range(STEPS):
                batch = StepBatch(1, 64 + index, 0 if index else 64, requests=(name,))
                waits = len(self.lane.blocked_ms)
                from_s = time.monotonic()
                with self.lane.step(batch):
                    if len(self.lane.blocked_ms) > waits:
                        self._entries_ms.append((time.monotonic() - from_s) * 1e3)
                    time.sleep(STEP_S)
                self.lane.emitted(name)
            self.lane.finished(name)
            self.lane.settle()
            time.sleep(chance.uniform(0.005, 0.06))

    def close(self) -> Harm:
        """Close the device, and return what the borrowers cost."""
        gave_back = self.device.gave_back
        reading = (
            {}
            if gave_back
            else {
                "waited_ms": (now := self.device.reading()).waited_ms,
                "kills": now.kills,
                "barred": now.barred,
            }
        )
        kills = tuple(self.device.lender.kills)
        self.device.close()
        _, records = read_log(self.log_path)
        certified = [one.fields["certified_ns"] for one in records if one.kind == "WAITED"]
        beyond = np.array(self._entries_ms) - np.array(certified[: len(self._entries_ms)]) / 1e6
        return Harm(
            waits_ms=self._entries_ms,
            beyond_ms=float(np.maximum(beyond, 0).sum()),
            verification=verify_log(self.log_path),
            gave_back=gave_back,
            kills=kills,
            reading=reading,
        )


@contextmanager
def supervised(kind: str, path: str, *arguments: str) -> Iterator[Supervisor]:
    """Run a borrower under a supervisor."""
    made = Supervisor(kind, path, *arguments)
    try:
        yield made
    finally:
        made.stop()


if __name__ == "__main__":
    BORROWERS[sys.argv[1]](*sys.argv[2:])
