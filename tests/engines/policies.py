"""Small policies, engines of them, and a plain commit, for tests that sample and change weights."""

import copy

import numpy as np
import torch

from rose.engines.transformers import (
    Engine,
    EngineConfig,
    LiveWeights,
    Model,
    Sampling,
    load_model,
    stock_engine,
)
from rose.transfer import delta_pack
from rose.transfer.receiving.commit import CommitState
from tests.engines.pair import Client

TILE = 16_384


def policy(*, seed: int, sharper: float = 6.0) -> Model:
    """A micro policy whose words differ in likelihood, so that its samples say something of it."""
    model = load_model("micro-policy", seed=seed)
    with torch.no_grad():
        model.lm_head.weight.mul_(sharper)
    return model


def copy_of(model: Model) -> Model:
    """Another model of the same weights; one that has had an engine cannot be copied as it is."""
    twin = type(model)(copy.deepcopy(model.config)).float().eval()
    twin.load_state_dict(model.state_dict())
    return twin


def engine_of(model: Model, **settings) -> Engine:
    """A stock engine that samples; the model stays the caller's."""
    config = EngineConfig(max_batch_tokens=64, sampling=True, **settings)
    return stock_engine(model, config, cache_blocks=128)


@torch.no_grad()
def true_logprobs(
    model: Model, prompt: list[int], tokens: list[int], temperature: float
) -> list[float]:
    """The logprobs of `tokens` after `prompt`, by one forward pass over all of them."""
    logits = copy_of(model)(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
    logprobs = torch.log_softmax(logits / temperature, dim=1)
    return logprobs.gather(1, torch.tensor(tokens).unsqueeze(1)).squeeze(1).tolist()


def generate_alone(
    model: Model, prompt: list[int], new_tokens: int, sampling: Sampling
) -> list[int]:
    """What a fresh engine of a copy of `model` says to `prompt` alone."""
    engine = engine_of(copy_of(model))
    engine.start()
    try:
        client = Client(engine, "alone", 0)
        name = client.send(prompt=prompt, new_tokens=new_tokens, sampling=sampling)
        client.wait()
    finally:
        engine.stop()
    return client.answers[name].generated_tokens


def later(bits: np.ndarray, *, seed: int, share: float = 0.3) -> np.ndarray:
    """The row after training that moved `share` of it by about a tenth of each number."""
    rng = np.random.default_rng(seed)
    fresh = bits.copy()
    at = np.flatnonzero(rng.random(len(bits)) < share)
    fresh[at] += rng.integers(-24, 25, len(at)).astype(np.uint16)
    return fresh


class TileCommit:
    """A commit that applies a row tile by tile, and goes back if it is told the digest is wrong."""

    def __init__(
        self, weights: LiveWeights, fresh: np.ndarray, *, end: CommitState = CommitState.COMMITTED
    ) -> None:
        self.weights = weights
        self.end = end
        self.state = CommitState.APPLYING
        self.slices = 0
        shadow = weights.row.copy()
        self._deltas = [delta_pack(fresh[tile.where], shadow[tile.where]) for tile in weights.cut]
        self._done = 0

    def step(self) -> bool:
        self.slices += 1
        self.weights.apply(self._done, self._deltas[self._done], undo=False)
        self._done += 1
        if self._done < len(self._deltas):
            return True
        if self.end is CommitState.ROLLED_BACK:
            self.abandon()
        else:
            self.state = self.end
        return False

    def abandon(self) -> None:
        while self._done > 0:
            self._done -= 1
            self.weights.apply(self._done, self._deltas[self._done], undo=True)
        self.state = CommitState.ROLLED_BACK
