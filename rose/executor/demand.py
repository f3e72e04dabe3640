"""What serving could need before a loan is back: the terms of every certificate."""

import math
import threading
from dataclasses import dataclass
from typing import Final

from rose._core import AdmissionTerms, Clock, Forecast, LatencyModel, admission_balance
from rose.memory import KVGeometry
from rose.slo import Policy
from rose.slo.arrivals import ArrivalEnvelope
from rose.slo.policy import RESIDUAL_WINDOW
from rose.slo.rates import ServingRates
from rose.units import NS_PER_MS

# The certificate wants the most serving can do, the prior knows the mean: until steps were
# measured, steps of the same shape are taken to vary by less than this factor.
_COLD_MARGIN: Final = 2.0


@dataclass(frozen=True, slots=True)
class ServingLimits:
    """The most serving can ask for at once.

    Args:
        step_tokens: of one engine step; all prefills of a step share it.
        request_tokens: of one prompt.
    """

    step_tokens: int
    request_tokens: int


class Demand:
    """D(T) of a serving engine, from what was measured of it. Any thread."""

    def __init__(
        self,
        *,
        geometry: KVGeometry,
        slab_bytes: int,
        limits: ServingLimits,
        model: LatencyModel,
        policy: Policy,
        clock: Clock,
    ) -> None:
        """Start with the priors of `model`; all sums are in whole blocks of `geometry`."""
        self.blocks_per_slab = geometry.blocks_per_slab(slab_bytes)
        self._block_tokens = geometry.block_tokens
        self._limits = limits
        self._model = model
        self._policy = policy
        self._clock = clock
        self._lock = threading.Lock()  # Guards what was measured.
        self._rates = ServingRates(
            epsilon=policy.epsilon, window=RESIDUAL_WINDOW, cold_margin=_COLD_MARGIN
        )
        self._arrivals = ArrivalEnvelope(
            horizon_ns=int(policy.revoke_ms * NS_PER_MS),
            remember_ns=int(policy.arrival_memory_ms * NS_PER_MS),
            epsilon=policy.epsilon,
            window=RESIDUAL_WINDOW,
        )

    def arrived(self, *, prompt_tokens: int) -> None:
        """Learn from a request's arrival."""
        with self._lock:
            self._arrivals.arrived(self._clock.now_ns(), prompt_tokens=prompt_tokens)

    def step_ended(
        self, forecast: Forecast, actual_ms: float, *, decode_sequences: int, prefill_tokens: int
    ) -> None:
        """Learn from a serving step and what was forecast for it."""
        with self._lock:
            self._rates.step_ended(
                actual_ms=actual_ms,
                predicted_ms=forecast.predicted_ms,
                decode_sequences=decode_sequences,
                prefill_tokens=prefill_tokens,
            )

    def terms(self, *, running: int) -> AdmissionTerms:
        """Say what `running` requests and those to come could need, in serving's whole blocks.

        What serving has is not in it: the arbiter fills that in when it is asked for a grant.

        No loan counts as revocable: a slab that no step pins now can be pinned before serving asks,
        and one on its way back has a block in use or a pin, or it would be back. No prefix counts
        as cached: which request comes next is not known.
        """
        step_ms = self._model.forecast(
            decode_sequences=1, context_tokens=0, prefill_tokens=0
        ).predicted_ms
        chunk_ms = self._model.forecast(
            decode_sequences=0, context_tokens=0, prefill_tokens=self._limits.step_tokens
        ).predicted_ms
        with self._lock:
            rates = self._rates.bounds(
                step_ms=step_ms, chunk_ms=chunk_ms, chunk_tokens=self._limits.step_tokens
            )
            burst_requests, burst_request_tokens = self._expected_arrivals()
        return AdmissionTerms(
            epoch=0,
            to_partition=0,
            slabs=0,
            blocks_per_slab=self.blocks_per_slab,
            block_tokens=self._block_tokens,
            free_serving_blocks=0,
            unowned_slabs=0,
            revocable_blocks=0,
            horizon_ms=self._policy.revoke_ms,
            running_requests=running,
            decode_tokens_per_s=rates.decode_tokens_per_s,
            prefill_tokens_per_s=rates.prefill_tokens_per_s,
            max_request_tokens=self._limits.request_tokens,
            max_batch_tokens=self._limits.step_tokens,
            burst_requests=burst_requests,
            burst_request_tokens=burst_request_tokens,
        )

    def _expected_arrivals(self) -> tuple[int, int]:
        """Return how many may arrive besides the largest, and how long each is; needs the lock.

        Before enough prompts were seen, all of them together are taken to be as long as
        `burst_requests` of the largest, and each as long as the longest so far.
        """
        seen, limit = self._arrivals, self._limits.request_tokens
        seen.forget(self._clock.now_ns())
        requests = max(self._policy.burst_requests, seen.most_requests)
        tokens = seen.prompt_tokens
        if tokens is None:
            prior = self._policy.burst_requests * limit / max(1, requests)
            tokens = max(prior, seen.longest_prompt_tokens)
        return requests, min(limit, math.ceil(tokens))

    def blocks(self, *, running: int) -> int:
        """Return D(T) with `running` requests, in serving's blocks."""
        return admission_balance(self.terms(running=running)).demand_blocks
