"""Serving alone in virtual time, as readings: what an engine's `/metrics` would have said."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from rose.scheduler.broker import Observation, ServingDevice
from rose.scheduler.broker.engine_reader import WINDOW_MS
from rose.sim import ArmOutcome, Request
from rose.units import NS_PER_MS

_Floats = npt.NDArray[np.float64]


@dataclass(slots=True)
class StepTimes:
    """Observes the simulator: when steps of serving ended."""

    ends_ms: list[float] = field(default_factory=list)

    def __call__(self, now_ns: int, what: str, number: int) -> None:
        """Note the end of a step."""
        del number
        if what == "step_end":
            self.ends_ms.append(now_ns / NS_PER_MS)


class ServedRequests:
    """Who was in the engine when, and what they held; a column for each request.

    A request holds its prompt from the moment it arrives: that is a little more than an engine
    gives it, for it waits without KV. From its first token to its last it grows evenly.
    """

    def __init__(self, requests: Sequence[Request], outcome: ArmOutcome, steps: StepTimes) -> None:
        """Keep an outcome of serving alone, and when its steps ended."""
        served = outcome.requests
        self.arrived_ms = np.array([one.arrival_ms for one in requests])
        self.ttft_ms = np.array([one.ttft_ms for one in served])
        self.first_ms = self.arrived_ms + self.ttft_ms
        said_ms = [one.mean_tpot_ms * (one.output_tokens - 1) for one in served]
        self.end_ms = self.first_ms + np.array(said_ms)
        self._prompt = np.array([one.prompt_tokens for one in requests], dtype=np.float64)
        self._output = np.array([one.output_tokens for one in served], dtype=np.float64)
        self._steps_ms: _Floats = np.array(steps.ends_ms)
        self._by_first = np.argsort(self.first_ms, kind="stable")

    def observation(
        self, at_ms: float, device: ServingDevice, *, token_bytes: int, batch_max: int
    ) -> Observation:
        """Return how serving was at a moment.

        Args:
            at_ms: the moment.
            device: that serves.
            token_bytes: of KV.
            batch_max: requests that run at once.
        """
        is_in = (self.arrived_ms <= at_ms) & (at_ms < self.end_ms)
        has_token = is_in & (self.first_ms <= at_ms)
        held = self._prompt[is_in].sum() + self._said(has_token, at_ms)
        running = int(has_token.sum())
        prefilling = int(is_in.sum()) - running
        # One prompt at a time is prefilled, if there is room for it.
        begun = min(prefilling, 1) if running < batch_max else 0
        return Observation(
            device=device,
            at_ms=at_ms,
            kv_used=min(1.0, float(held) * token_bytes / device.kv_bytes),
            running=running + begun,
            waiting=prefilling - begun,
            ttft_ms_p99=_p99(self._first_tokens(at_ms)),
            tpot_ms_p99=_p99(*self._gaps(at_ms)),
        )

    def _said(self, has_token: npt.NDArray[np.bool_], at_ms: float) -> float:
        first_ms, end_ms = self.first_ms[has_token], self.end_ms[has_token]
        part = (at_ms - first_ms) / np.maximum(end_ms - first_ms, 1e-9)
        return float((1 + part * (self._output[has_token] - 1)).sum())

    def _first_tokens(self, at_ms: float) -> _Floats:
        ordered = self.first_ms[self._by_first]
        low, high = np.searchsorted(ordered, [at_ms - WINDOW_MS, at_ms], side="right")
        found: _Floats = self.ttft_ms[self._by_first[low:high]]
        return found

    def _gaps(self, at_ms: float) -> tuple[_Floats, _Floats]:
        """Return the gaps between steps of the window, and the requests that waited through each.

        Every request that decodes gets a token at the end of every step.
        """
        low, high = np.searchsorted(self._steps_ms, [at_ms - WINDOW_MS, at_ms], side="right")
        ends = self._steps_ms[max(low - 1, 0) : high]
        if ends.size < 2:
            return np.empty(0), np.empty(0)
        began, ended = ends[:-1], ends[1:]
        had = np.searchsorted(np.sort(self.first_ms), began + 1e-6, side="right")
        gone = np.searchsorted(np.sort(self.end_ms), began + 1e-6, side="right")
        waited: _Floats = (had - gone).astype(np.float64)
        return ended - began, np.maximum(waited, 0)


def _p99(values: _Floats, weights: _Floats | None = None) -> float | None:
    """Return the 99 % quantile of values that count `weights` times; None without any."""
    counts = np.ones(values.size) if weights is None else weights
    total = float(counts.sum())
    if not total:
        return None
    order = np.argsort(values, kind="stable")
    at = int(np.searchsorted(np.cumsum(counts[order]), 0.99 * total - 1e-9))
    return float(values[order][min(at, values.size - 1)])
