"""Two engines on one device, small enough to be at each other's throats, and their clients."""

import random
import threading
from collections.abc import Callable

import torch
from typing_extensions import Self

from rose.engines.transformers import (
    Engine,
    EngineConfig,
    Model,
    Output,
    Sampling,
    kv_geometry,
    rollout_engine,
    serving_engine,
)
from rose.engines.transformers.commits import InFlight
from rose.executor import SLO, CoServing, Policy
from rose.memory import choose_slab_bytes
from tests.known_model import confirm

POOL_BYTES = 40 << 20
WAIT_S = 200.0


# Two tokens whose logits differ by less are a tie, which rounding decides: the same sum over
# another batch has another order.
TIE = 1e-4


def generate(model: Model, prompt: list[int], new_tokens: int) -> list[int]:
    """Return what the model says alone: the truth for all engines."""
    return model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        do_sample=False,
        max_new_tokens=new_tokens,
        eos_token_id=-1,
        pad_token_id=0,
    )[0, len(prompt) :].tolist()


@torch.no_grad()
def would_generate(model: Model, prompt: list[int], tokens: list[int]) -> bool:
    """Return whether `tokens` are what `generate` says, but for ties.

    One pass over all of them: each must have the best logit after those before it.
    """
    logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
    chosen = logits.gather(1, torch.tensor(tokens).unsqueeze(1)).squeeze(1)
    return bool((chosen >= logits.max(dim=1).values - TIE).all())


class Pair:
    """Serving and a borrower on one device, small enough to be at each other's throats."""

    def __init__(
        self,
        models: tuple[Model, Model],
        *,
        prefix_cache: bool = True,
        is_sampling: bool = False,
        pool_bytes: int = POOL_BYTES,
        move_bytes: int = 8 << 20,
        inflight: InFlight = "keep",
        probes: bool = False,
        serving_prefix_cache: bool = False,
        **knobs,
    ) -> None:
        self.serving_model, self.rollout_model = models
        if not probes:  # Nothing but requests brings evidence back after an outlier: ask for less.
            knobs = {"epsilon": 0.1, **knobs}
        config = EngineConfig(max_batch_tokens=64, prefix_cache=serving_prefix_cache)
        borrower = EngineConfig(
            max_batch_tokens=64,
            prefix_cache=prefix_cache,
            sampling=is_sampling,
            move_bytes=move_bytes,
            inflight=inflight,
        )
        serving_kv = kv_geometry(self.serving_model, config)
        rollout_kv = kv_geometry(self.rollout_model, borrower)
        self.device = CoServing.open(
            "cpu",
            pool_bytes=pool_bytes,
            slab_bytes=choose_slab_bytes(serving_kv, rollout_kv),
            # Deadlines that a thread which lost its core for a while still keeps.
            policy=Policy(
                regrow_after_ms=5.0,
                revoke_ms=200.0,
                blocking_ms=2000.0,
                heartbeat_ttl_ms=5000.0,
                lease_ttl_ms=600_000.0,
                **knobs,
            ),
        )
        self.serving_lane = self.device.serving(
            serving_kv,
            slo=SLO(ttft_ms=20_000.0, tpot_ms=1000.0),
            reserve_bytes=4 << 20,
            step_tokens=64,
            request_tokens=256,
        )
        if not probes:
            confirm(self.device._parts.model, 64)
        self.rollout_lane = self.device.rollout(rollout_kv, limit_bytes=pool_bytes)
        self.serving = serving_engine(self.serving_model, self.serving_lane, config, probes=probes)
        self.rollout = rollout_engine(
            self.rollout_model, self.rollout_lane, borrower, layers_per_segment=1
        )

    def __enter__(self) -> Self:
        self.serving.start()
        self.rollout.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.rollout.stop()
        self.serving.stop()
        self.device.close()


class Client:
    """Sends requests to one engine and keeps what comes back."""

    def __init__(self, engine: Engine, name: str, seed: int) -> None:
        self.engine = engine
        self.name = name
        self.rng = random.Random(seed)
        self.asked: dict[str, tuple[list[int], int]] = {}
        self.answers: dict[str, Output] = {}
        self.streamed: dict[str, list[int]] = {}
        self._done = threading.Condition()

    def send(
        self,
        *,
        prompt_tokens: int = 0,
        new_tokens: int,
        on_finish: Callable[[], None] | None = None,
        prompt: list[int] | None = None,
        sampling: Sampling | None = None,
        stop_tokens: tuple[int, ...] = (),
    ) -> str:
        request_id = f"{self.name}-{len(self.asked) + 1}"
        prompt = prompt or [self.rng.randrange(4096) for _ in range(prompt_tokens)]
        self.asked[request_id] = (prompt, new_tokens)

        def on_output(output: Output) -> None:
            self.streamed.setdefault(request_id, []).append(len(output.generated_tokens))
            if not output.is_finished():
                return
            if on_finish is not None:
                on_finish()
            with self._done:
                self.answers[request_id] = output
                self._done.notify_all()

        self.engine.submit(
            request_id,
            prompt,
            max_new_tokens=new_tokens,
            on_output=on_output,
            sampling=sampling,
            stop_tokens=stop_tokens,
        )
        return request_id

    @property
    def waiting(self) -> int:
        return len(self.asked) - len(self.answers)

    def wait(self, timeout_s: float = WAIT_S) -> None:
        with self._done:
            assert self._done.wait_for(lambda: self.waiting == 0, timeout_s), (
                f"{self.name}: {self.waiting} of {len(self.asked)} requests unanswered; "
                f"engine: {self.engine.error}"
            )

    def errors(self) -> list[str]:
        return [one.error for one in self.answers.values() if one.error is not None]

    def wrong(self, model: Model) -> list[str]:
        """The requests whose prompt or tokens are not what `model` alone would say."""
        return [
            request_id
            for request_id, (prompt, new_tokens) in self.asked.items()
            if self.answers[request_id].prompt_ids != prompt
            or len(self.answers[request_id].generated_tokens) != new_tokens
            or not would_generate(model, prompt, self.answers[request_id].generated_tokens)
        ]
