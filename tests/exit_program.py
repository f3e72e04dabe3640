"""A program whose main thread ends while a daemon thread is in a call of rose.

Its arguments are the kind of call, a folder, and, for a borrower, the socket of a device.
"""

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np

from rose.errors import RoseError
from rose.executor import CoServing, Quantum
from tests.executor import lending_program
from tests.executor.conftest import ROLLOUT_KV, SLAB, Rig
from tests.waiting import wait_for

COUNT: Final = 1 << 20


def beside(work: Callable[[], object]) -> None:
    """Repeat `work` in a daemon thread, which is in a call of rose for most of its time."""

    def run() -> None:
        while True:
            with suppress(RoseError):
                work()

    threading.Thread(target=run, daemon=True).start()


def rest() -> None:
    threading.Event().wait(0.02)


# ---- serving, and a borrower in its process


def lend(folder: Path) -> None:
    """Serving's thread waits in the core while rollouts use its slack."""
    lending_program.main(folder / "log")


def gate(folder: Path) -> None:
    """A borrower waits at its gate while a request is live."""
    rig = Rig(folder / "log")

    def segments() -> None:
        while True:
            rig.rollout.gate()

    beside(lambda: rig.step_once(segments))
    wait_for(lambda: rig.device.gate.passed > 0)
    rig.serving.arrived("a", prompt_tokens=8)


def parked(folder: Path) -> None:
    """Serving waits for a stuck segment."""
    rig = Rig(folder / "log")
    beside(lambda: rig.step_once(threading.Event().wait))
    wait_for(rig.device.gate.is_running)
    rig.serving.arrived("a", prompt_tokens=8)
    threading.Thread(target=rig.serving.step(lending_program.DECODE).__enter__, daemon=True).start()
    rest()


def ensure(folder: Path) -> None:
    """Serving waits for memory that the borrower does not give back."""
    rig = Rig(folder / "log")
    rig.borrow(64)
    rig.rollout.on_revoke = lambda _notice: None
    beside(lambda: rig.serving.ensure(50))
    rest()


def steps(folder: Path) -> None:
    """Both lanes run steps."""
    rig = Rig(folder / "log")

    def serve() -> None:
        rig.serving.arrived("a", prompt_tokens=8)
        for _ in range(3):
            with rig.serving.step(lending_program.DECODE):
                threading.Event().wait(0.001)
            rig.serving.emitted("a")
        rig.serving.finished("a")
        threading.Event().wait(0.002)

    beside(lambda: rig.step_once(lambda: [rig.rollout.gate() for _ in range(3)]))
    beside(serve)
    wait_for(lambda: rig.device.gate.passed > 0)


# ---- a borrower in a process of its own


def borrow(folder: Path) -> None:
    """A borrower runs steps, and waits at its gates."""
    device = CoServing.attach(folder / "socket")
    lane = device.rollout(ROLLOUT_KV, limit_bytes=4 * SLAB)

    def step() -> None:
        quantum = lane.try_step(timeout_ms=100)
        if isinstance(quantum, Quantum):
            with quantum:
                for _ in range(3):
                    lane.gate()

    beside(step)
    wait_for(lambda: lane.passes > 0)


# ---- weights


def weights() -> dict[str, np.ndarray]:
    return {"w": np.zeros(COUNT, np.float32)}


def change(values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    values["w"][::97] += 1
    return values


def pack(_folder: Path) -> None:
    from rose.transfer import delta_pack

    old = np.zeros(8 * COUNT, np.uint16)
    new = old.copy()
    new[::100] = 1
    beside(lambda: delta_pack(new, old.copy()))
    rest()


def update(_folder: Path) -> None:
    import rose

    values = weights()
    publisher = rose.publish(values)
    beside(lambda: publisher.update(change(values)))
    rest()


def receive(_folder: Path) -> None:
    import rose

    values = weights()
    publisher = rose.publish(values)
    receiver = rose.receive(weights(), publisher.address, token=publisher.token)
    beside(lambda: publisher.update(change(values)))
    beside(lambda: (receiver.wait(1.0), receiver.commit()))
    wait_for(lambda: receiver.version)


def main() -> None:
    kind, folder = sys.argv[1:]
    globals()[kind](Path(folder))


if __name__ == "__main__":
    main()
