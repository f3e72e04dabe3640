"""Two models on one device: serving answers requests, rollouts use the memory and time it leaves.

Both are small language models in NumPy whose KV lies in rose's pool. When a request arrives,
rollouts stop at the next gate between two layers, and give memory back if serving needs it. Sharing
changes no token: every answer and every rollout equals the output of its model alone.
`python examples/lend.py` takes some seconds, and a minute or more on a machine that is busy with
other work.
"""

import random
import time
from collections.abc import Callable
from threading import Thread

import numpy as np

import rose
from rose.executor import StepBatch

VOCAB, WIDTH, BLOCK = 64, 32, 16


class Model:
    """A decoder of `layers` layers, each with one head of attention."""

    def __init__(self, layers: int) -> None:
        draw = np.random.default_rng(layers)
        self.embedding = draw.standard_normal((VOCAB, WIDTH), dtype=np.float32)
        self.weights = draw.standard_normal((layers, WIDTH, WIDTH), dtype=np.float32) / WIDTH
        self.config = {
            "model_type": "llama",
            "num_hidden_layers": layers,
            "num_attention_heads": 1,
            "hidden_size": WIDTH,
            "intermediate_size": WIDTH,
            "vocab_size": VOCAB,
            "dtype": "float32",
        }

    def forward(
        self,
        engine: rose.Serving | rose.Borrower,
        row: rose.Request | rose.Sequence,
        ids: list[int],
        between: Callable[[], None] = lambda: None,
    ) -> int:
        """Compute the tokens of `row` whose KV is missing, and return the likeliest next token."""
        at, blocks = np.arange(row.computed, len(ids)), np.array(row.blocks)
        x = self.embedding[ids[row.computed :]]
        for weight, view in zip(self.weights, engine.kv.views(np.float32), strict=True):
            between()
            kv = np.asarray(view).reshape(-1, BLOCK, 2, WIDTH)
            kv[blocks[at // BLOCK], at % BLOCK] = np.stack((x @ weight, x), axis=1)
            keys, values = kv[blocks].reshape(-1, 2, WIDTH)[: len(ids)].swapaxes(0, 1)
            x = x + attention(x, keys, values, first=row.computed)
        return int(np.argmax(self.embedding @ x[-1]))

    def run(self, batch: StepBatch) -> None:
        """Run a step with the shape of `batch`, so that its time can be measured."""
        x = np.zeros((batch.decode_sequences + batch.prefill_tokens, WIDTH), np.float32)
        kv = np.zeros((batch.context_tokens, WIDTH), np.float32)
        for weight in self.weights:
            attention(x @ weight, kv, kv, first=max(0, len(kv) - len(x)))


def attention(x: np.ndarray, keys: np.ndarray, values: np.ndarray, *, first: int) -> np.ndarray:
    """Let each token attend to itself and earlier ones; row 0 of `x` is token `first`."""
    later = np.arange(len(keys)) > np.arange(first, first + len(x))[:, None]
    scores = np.where(later, -np.inf, x @ keys.T)
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    mixed: np.ndarray = (scores / scores.sum(axis=1, keepdims=True)) @ values
    return mixed


def answer(serving: rose.Serving, model: Model, prompt: list[int], tokens: int) -> list[int]:
    """Serve one request: return its prompt and the tokens that follow."""
    ids = list(prompt)
    with serving.request(prompt_tokens=len(ids)) as request:  # from here on rollouts pause
        for _ in range(tokens):
            with serving.step(decode=[request]):  # waits for one rollout segment at most
                ids.append(model.forward(serving, request, ids))
    return ids


def roll_out(borrower: rose.Borrower, model: Model, prompt: list[int], tokens: int) -> list[int]:
    """Run one rollout: return its prompt and the tokens that follow."""
    ids = list(prompt)
    with borrower.sequence() as sequence:
        sequence.grow(len(ids))
        for step in borrower.steps([sequence]):  # waits for blocks and for a quantum of time
            with step:  # a step that serving aborts is offered again
                token = model.forward(borrower, sequence, ids, between=step.gate)
            if step.is_done:
                ids.append(token)
                if len(ids) < len(prompt) + tokens:
                    sequence.grow(1)
    return ids


def main() -> None:
    """Answer requests until some rollouts are done."""
    served, rolled_out = Model(layers=2), Model(layers=6)
    with rose.open("cpu", slo=rose.SLO(ttft_ms=3000, tpot_ms=300)) as device:  # or "cuda:0"
        serving = device.serving(served.config, step_tokens=256, request_tokens=512)
        borrower = device.borrower(rolled_out.config)
        serving.warm_up(served.run)  # measures the largest steps; without this nothing is lent

        rollouts = Thread(
            target=lambda: [roll_out(borrower, rolled_out, [seed], 100) for seed in range(10)]
        )
        rollouts.start()
        draw, answers = random.Random(0), 0
        while rollouts.is_alive():
            answer(serving, served, draw.choices(range(VOCAB), k=draw.randrange(1, 200)), 8)
            answers += 1
            idle_until = time.monotonic() + draw.expovariate(50)
            while time.monotonic() < idle_until:
                serving.probe(served.run)  # measures a step while no request waits
                time.sleep(0.002)
        print(f"10 rollouts beside {answers} answers; why rose gave back: {device.gave_back}")


if __name__ == "__main__":
    main()
