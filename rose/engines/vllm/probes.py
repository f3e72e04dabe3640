"""Probes: rose's own requests, by which an idle serving engine measures its steps."""

import random
from collections.abc import Callable, Iterator
from typing import Any, Final

from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request

from rose.executor import ServingLane

PREFIX: Final = "rose-probe-"
# Decode steps of a probe. With fewer, the probe's prompt would cost more than its decode steps.
_DECODE_STEPS: Final = 16
# Limit of probe steps at start-up, as a multiple of the steps that a steady machine needs.
_ROUNDS_MAX: Final = 4


class Probes:
    """Decides which probes an idle engine runs.

    At start-up, probes run until there is evidence for both step shapes. Later a probe runs when
    `ServingLane.probe_due` asks for one. A probe's prompt is random, so it shares no cached prefix.
    Probes end when a request arrives.
    """

    def __init__(
        self,
        lane: ServingLane,
        *,
        vocabulary: int,
        holds_tokens: int,
        block_hasher: Callable[[Request], list[Any]] | None,
    ) -> None:
        """Plan the probes of the engine that uses `lane`.

        Args:
            lane: lane of serving.
            vocabulary: number of token ids, > 0.
            holds_tokens: number of tokens whose KV fits the pool.
            block_hasher: vLLM's hash of a request's blocks; None if nothing is cached.
        """
        self._lane = lane
        self._vocabulary = vocabulary
        self._holds_tokens = holds_tokens
        self._block_hasher = block_hasher
        self._rng = random.Random(0)
        self._made = 0
        self._runs_left = _ROUNDS_MAX * sum(one.missing for one in lane.evidence())

    @property
    def is_warming_up(self) -> bool:
        """True until both step shapes have evidence, or the steps for start-up are used up."""
        return self._runs_left > 0 and bool(self._missing())

    def _missing(self) -> dict[str, int]:
        return {one.shape: one.missing for one in self._lane.evidence() if one.missing > 0}

    def due(self) -> list[Request]:
        """Return the requests to add now; empty if no probe is due."""
        if self.is_warming_up:
            decode_steps = min(
                self._missing().get("step", 0), self._lane.limits.request_tokens // 2
            )
            requests = list(self._requests(decode_steps))
            self._runs_left -= decode_steps + len(requests)
            return requests
        batch = self._lane.probe_due()
        if batch is None:
            return []
        return list(self._requests(_DECODE_STEPS if batch.decode_sequences else 0))

    def _requests(self, decode_steps: int) -> Iterator[Request]:
        """Yield requests whose prompts together fill a step, as far as the pool holds them."""
        count, prompt_tokens, new_tokens = self._lane.limits.probe_size(
            decode_steps, self._holds_tokens
        )
        for _ in range(count):
            self._made += 1
            yield Request(
                request_id=f"{PREFIX}{self._made}",
                prompt_token_ids=[
                    self._rng.randrange(self._vocabulary) for _ in range(prompt_tokens)
                ],
                sampling_params=SamplingParams(
                    max_tokens=new_tokens, ignore_eos=True, temperature=0.0, detokenize=False
                ),
                pooling_params=None,
                block_hasher=self._block_hasher,
            )


def is_probe(request_id: str) -> bool:
    """Return True if a request is a probe."""
    return request_id.startswith(PREFIX)
