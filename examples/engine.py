"""The engine of `toy_engine.py` with rose beneath, and a borrower that runs in its idle time.

`docs/tutorial.md` goes through the changes. `python examples/engine.py` takes some seconds.
"""

import random
import sys
import time
from threading import Thread

from lend import VOCAB, Model, roll_out

import rose


class Engine:
    """Computes one token of every request in each step."""

    def __init__(self, model: Model, serving: rose.Serving) -> None:
        self.model, self.serving = model, serving
        self.running: dict[rose.Request, tuple[list[int], int]] = {}

    def submit(self, prompt: list[int], tokens: int) -> list[int]:
        """Add a request to the next step; return the list to which steps append its tokens."""
        request = self.serving.request(prompt_tokens=len(prompt))
        self.running[request] = list(prompt), len(prompt) + tokens
        return self.running[request][0]

    def step(self) -> None:
        """Run one step, then remove the requests that are complete."""
        with self.serving.step(decode=self.running):
            for request, (ids, _) in self.running.items():
                ids.append(self.model.forward(self.serving, request, ids))
        for request, (ids, wanted) in list(self.running.items()):
            if len(ids) == wanted:
                request.close()
                del self.running[request]

    def idle(self) -> None:
        """Measure a step while there is no request."""
        self.serving.probe(self.model.run)


def roll_out_all(borrower: rose.Borrower, model: Model) -> None:
    """Run five rollouts, one after the other."""
    for seed in range(5):
        roll_out(borrower, model, [seed], 50)


def main(log_path: str = "") -> list[list[int]]:
    """Answer the same requests as `toy_engine.py`, with rollouts in between."""
    served, rolled_out = Model(layers=2), Model(layers=6)
    slo = rose.SLO(ttft_ms=3000, tpot_ms=300)  # room for the largest step of a busy machine
    with rose.open("cpu", slo=slo, log_path=log_path) as device:
        serving = device.serving(served.config, step_tokens=1024, request_tokens=256)
        borrower = device.borrower(rolled_out.config)
        serving.warm_up(served.run)
        rollouts = Thread(target=roll_out_all, args=(borrower, rolled_out))
        rollouts.start()

        engine, draw, answers = Engine(served, serving), random.Random(0), []
        while len(answers) < 20 or engine.running or rollouts.is_alive():
            for _ in range(4 if len(answers) < 20 else 0):
                prompt = draw.choices(range(VOCAB), k=draw.randrange(1, 200))
                answers.append(engine.submit(prompt, 8))
            for _ in range(5):
                engine.step() if engine.running else engine.idle()
            time.sleep(0.002)
        print(f"{len(answers)} answers beside rollouts; why rose gave back: {device.gave_back}")
    return answers


if __name__ == "__main__":
    main(*sys.argv[1:2])
