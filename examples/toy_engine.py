"""A toy inference engine: continuous batching over a paged KV cache. It knows nothing of rose.

The model is that of `lend.py`. `python examples/toy_engine.py` takes a second.
"""

import random
from dataclasses import dataclass, field

import numpy as np
from lend import BLOCK, VOCAB, WIDTH, Model


@dataclass(eq=False)
class Request:
    """A request: its tokens, their wanted count, the count with KV, and its blocks."""

    ids: list[int]
    wanted: int
    computed: int = 0
    blocks: list[int] = field(default_factory=list)


class Cache:
    """A KV cache: one array per layer, and the numbers of the free blocks."""

    def __init__(self, model: Model, blocks: int) -> None:
        self._layers = [np.zeros((blocks, BLOCK * 2 * WIDTH), np.float32) for _ in model.weights]
        self.free = list(range(blocks))

    def views(self, _dtype: type) -> list[np.ndarray]:
        """Return (blocks, floats of a block) for each layer."""
        return self._layers


class Engine:
    """Computes one token of every request in each step."""

    def __init__(self, model: Model, blocks: int = 256) -> None:
        self.model, self.kv = model, Cache(model, blocks)
        self.running: list[Request] = []

    def submit(self, prompt: list[int], tokens: int) -> Request:
        """Add a request to the next step."""
        self.running.append(Request(list(prompt), len(prompt) + tokens))
        return self.running[-1]

    def step(self) -> None:
        """Run one step, then remove the requests that are complete."""
        for request in self.running:
            missing = -(-len(request.ids) // BLOCK) - len(request.blocks)
            request.blocks += [self.kv.free.pop() for _ in range(missing)]
            token = self.model.forward(self, request, request.ids)
            request.computed = len(request.ids)
            request.ids.append(token)
        for request in [one for one in self.running if len(one.ids) == one.wanted]:
            self.running.remove(request)
            self.kv.free += request.blocks


def main() -> list[list[int]]:
    """Answer twenty requests; four arrive before every five steps."""
    engine, draw, requests = Engine(Model(layers=2)), random.Random(0), []
    while len(requests) < 20 or engine.running:
        for _ in range(4 if len(requests) < 20 else 0):
            prompt = draw.choices(range(VOCAB), k=draw.randrange(1, 200))
            requests.append(engine.submit(prompt, 8))
        for _ in range(5):
            engine.step()
    print(f"{len(requests)} answers")
    return [one.ids for one in requests]


if __name__ == "__main__":
    main()
