"""The borrower of `lend.py` in a process of its own, which attaches to serving's device.

Each process has its own Python interpreter lock, and serving survives the borrower's death.
`python examples/borrow.py` starts both and takes some seconds.
"""

import random
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from lend import VOCAB, Model, answer, roll_out

import rose


def borrow(path: str) -> None:
    """Run rollouts in the memory and time that the device at `path` lends."""
    model = Model(layers=6)
    with rose.borrow(path, model.config) as borrower:
        tokens = sum(len(roll_out(borrower, model, [seed], 100)) for seed in range(5))
    print(f"{tokens} rollout tokens", flush=True)


def main() -> None:
    """Answer requests until the borrower's process is done."""
    served, draw, answers = Model(layers=2), random.Random(0), 0
    with (
        TemporaryDirectory() as folder,
        rose.open("cpu", slo=rose.SLO(ttft_ms=3000, tpot_ms=300)) as device,
    ):
        serving = device.serving(served.config, step_tokens=256, request_tokens=512)
        serving.warm_up(served.run)
        path = Path(folder, "lend.sock")
        device.listen(path)
        with subprocess.Popen([sys.executable, __file__, path]) as borrower:
            while borrower.poll() is None:
                answer(serving, served, draw.choices(range(VOCAB), k=draw.randrange(1, 200)), 8)
                answers += 1
                idle_until = time.monotonic() + draw.expovariate(50)
                while time.monotonic() < idle_until:
                    serving.probe(served.run)
                    time.sleep(0.002)
        print(f"{answers} answers beside them; why rose gave back: {device.gave_back}")


if __name__ == "__main__":
    borrow(sys.argv[1]) if sys.argv[1:] else main()
