"""A program that forks while it shares a device, or publishes and receives weights.

Its arguments are what the child does, and a folder. It prints the child's status and the error that
the child met, then ends with status 0 if rose works in the parent as before.
"""

import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

import rose
from rose.errors import Unavailable
from rose.executor import StepBatch
from tests.executor.conftest import Rig

DECODE = StepBatch(decode_sequences=1, context_tokens=8, prefill_tokens=0, requests=("a",))


def forked(work: Callable[[], object]) -> None:
    """Run `work` in a forked child that ends as a program does, and print how it went."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            work()
        except Unavailable as error:
            sys.stdout.write(f"{error}\n")
        sys.exit(0)
    _, status = os.waitpid(child, 0)
    sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")


class Devices:
    """A device with both lanes."""

    def __init__(self, folder: Path) -> None:
        self.rig = Rig(folder / "log")
        self.rig.borrow(8)
        self.check()

    def check(self) -> None:
        """Use the device in this process."""
        self.rig.step_once(lambda: [self.rig.rollout.gate() for _ in range(3)])
        self.rig.serving.arrived("a", prompt_tokens=8)
        with self.rig.serving.step(DECODE):
            pass
        self.rig.serving.emitted("a")
        self.rig.serving.finished("a")
        assert self.rig.device.gave_back is None
        assert not self.rig.device.gate.is_shut_down()

    def use(self) -> None:
        self.rig.serving.arrived("b", prompt_tokens=8)

    def borrow(self) -> None:
        self.rig.rollout.try_step(timeout_ms=0)

    def drop(self) -> None:
        del self.rig
        gc.collect()

    def close(self) -> None:
        self.rig.device.close()

    def end(self) -> None:
        """Close in this process, and verify the log."""
        self.rig.close()


class Weights:
    """A publisher and its receiver."""

    def __init__(self, _folder: Path) -> None:
        self.values = {"w": np.zeros(1 << 12, np.float32)}
        self.publisher = rose.publish(self.values)
        self.receiver = rose.receive(
            {"w": np.ones(1 << 12, np.float32)}, self.publisher.address, token=self.publisher.token
        )
        self.receiver.wait(100)
        self.receiver.commit()

    def check(self) -> None:
        self.values["w"] += 1
        number = self.publisher.update(self.values)
        self.receiver.wait(100)
        assert self.receiver.commit() == number

    def use(self) -> None:
        self.publisher.update(self.values)

    def borrow(self) -> None:
        self.receiver.wait(1.0)

    def drop(self) -> None:
        del self.publisher, self.receiver
        gc.collect()

    def close(self) -> None:
        self.publisher.close()
        self.receiver.close()

    def end(self) -> None:
        self.close()


def main() -> None:
    what, does, folder = sys.argv[1:]
    opened = {"device": Devices, "weights": Weights}[what](Path(folder))
    opened.check()
    forked(getattr(opened, does, lambda: None))
    opened.check()
    opened.end()


if __name__ == "__main__":
    main()
