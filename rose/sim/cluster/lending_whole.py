"""Whole devices or nothing: what elastic systems lend that do not share a device.

Serving keeps as many devices as its requests need, and the others run rollouts, after they have
started up. A device that is needed again stops its rollouts at once, and serves when it is
released.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from rose.errors import InvalidArgument
from rose.sim.cluster.lending_columns import bin_edges
from rose.sim.cluster.lending_felt import ServingFelt, felt
from rose.sim.cluster.lending_traffic import least_outstanding, split
from rose.sim.cluster.world import Lending
from rose.sim.device import DeviceModel
from rose.sim.outcome import ArmOutcome, RequestOutcome
from rose.sim.request import Request
from rose.sim.simulation import simulate
from rose.slo import SLO
from rose.units import MS_PER_S

# PEARL (arXiv 2609.35158), reconfiguration of Qwen3-8B: a worker that is new prepares and
# finalises, one whose process stayed is activated again, and a device is released.
PREPARE_MS: Final = 56_300.0
FINALISE_MS: Final = 11_100.0
ACTIVATE_MS: Final = 6_300.0
RELEASE_MS: Final = 3_200.0


@dataclass(frozen=True, slots=True)
class WholeDevices:
    """How a service's devices are given away and taken back.

    Args:
        device_rps: requests per second that a device serves within its SLO, > 0.
        spare: devices beyond what is needed that serving keeps, >= 0.
        window_ms: how long requests are counted before each decision, > 0.
        calm_windows: a device goes when it was not needed for so many windows, > 0; it comes back
            after one.
        first_ms: from a device's first loan to its first rollout.
        again_ms: the same for later loans.
        release_ms: from the decision to take it back to its first request.
    """

    device_rps: float
    spare: int = 1
    window_ms: float = 10_000.0
    calm_windows: int = 6
    first_ms: float = PREPARE_MS + FINALISE_MS
    again_ms: float = ACTIVATE_MS
    release_ms: float = RELEASE_MS

    def __post_init__(self) -> None:
        """Refuse a rule without a meaning.

        Raises:
            InvalidArgument: a value is out of its range.
        """
        times = (self.first_ms, self.again_ms, self.release_ms)
        is_sound = self.device_rps > 0 and self.spare >= 0 and self.calm_windows > 0
        if not (is_sound and self.window_ms > 0 and all(0 <= ms < math.inf for ms in times)):
            raise InvalidArgument(f"{self} has a value out of its range")

    def serving_devices(
        self, arrival_ms: npt.NDArray[np.float64], *, devices: int, horizon_ms: float
    ) -> npt.NDArray[np.int64]:
        """Return (windows,) how many devices serve in each; all do before anything was counted."""
        edges = bin_edges(bin_ms=self.window_ms, horizon_ms=horizon_ms)
        counts, _ = np.histogram(arrival_ms, edges)
        rates = counts / np.diff(edges) * MS_PER_S
        needed = np.minimum(np.ceil(rates / self.device_rps) + self.spare, devices)
        serving = np.full(len(needed), devices, dtype=np.int64)
        for window in range(self.calm_windows, len(needed)):
            serving[window] = max(1, needed[window - self.calm_windows : window].max())
        return serving

    def lendings(
        self, serving: npt.NDArray[np.int64], *, devices: int, kv_tokens: int
    ) -> tuple[Lending, ...]:
        """Return each device's timeline; the highest numbers are lent first.

        Start-ups are in it, so the workers' own `start_up_ms` should be 0.
        """
        return tuple(self._lending(serving <= number, kv_tokens) for number in range(devices))

    def _lending(self, is_lent: npt.NDArray[np.bool_], kv_tokens: int) -> Lending:
        moves = np.flatnonzero(np.diff(is_lent.astype(np.int8), prepend=0))
        at_ms, tokens, starts_ms = [0.0], [0], self.first_ms
        for window in moves:
            now_ms = window * self.window_ms
            if is_lent[window]:
                at_ms.append(now_ms + starts_ms)
                tokens.append(kv_tokens)
                starts_ms = self.again_ms
            elif now_ms <= at_ms[-1]:  # taken back before it had started up
                at_ms.pop()
                tokens.pop()
            else:
                at_ms.append(now_ms)
                tokens.append(0)
        return Lending(
            at_ms=np.array(at_ms, dtype=np.float64),
            share=(np.array(tokens) > 0).astype(np.float64),
            kv_tokens=np.array(tokens, dtype=np.int64),
        )


def lend_whole(
    requests: Sequence[Request],
    device: DeviceModel,
    rule: WholeDevices,
    *,
    devices: int,
    kv_tokens: int,
    slo: SLO,
    horizon_ms: float,
    seed: int,
) -> tuple[tuple[Lending, ...], ServingFelt]:
    """Serve a service's requests on as few devices as the rule keeps, and lend the others.

    Requests go to whoever has the fewest outstanding of the devices that serve. What serving felt
    is held against all devices serving.

    Args:
        requests: of the whole service, by arrival.
        device: what things cost on each.
        rule: how devices come and go.
        devices: of the service, > 0.
        kv_tokens: of the borrower's contexts on a device of its own.
        slo: what serving was promised.
        horizon_ms: where the timelines end, > 0.
        seed: of the noise of the first device; the others count up from it.

    Raises:
        InvalidArgument: no devices, or requests that are not a trace.
    """
    arrival_ms = np.array([one.arrival_ms for one in requests], dtype=np.float64)
    serving = rule.serving_devices(arrival_ms, devices=devices, horizon_ms=horizon_ms)
    window = np.minimum(
        np.maximum(arrival_ms - rule.release_ms, 0) // rule.window_ms, len(serving) - 1
    ).astype(np.int64)
    # What is given away stops serving at once; what is taken back serves when it is released.
    now = np.minimum(arrival_ms // rule.window_ms, len(serving) - 1).astype(np.int64)
    there = np.minimum(serving[window], serving[now])
    outcomes = [
        _served(requests, there_now, device, devices=devices, slo=slo, seed=seed)
        for there_now in (there, np.full(len(requests), devices))
    ]
    lendings = rule.lendings(serving, devices=devices, kv_tokens=kv_tokens)
    return lendings, felt(*outcomes, slo=slo)


def _served(
    requests: Sequence[Request],
    there: npt.NDArray[np.int64],
    device: DeviceModel,
    *,
    devices: int,
    slo: SLO,
    seed: int,
) -> ArmOutcome:
    """Return one outcome for all devices, its requests in the order of the service's."""
    step_ms = device.base_ms + device.sequence_ms
    stays_ms = [
        device.prefill_ms * one.prompt_tokens + step_ms * one.output_tokens for one in requests
    ]
    goes_to = least_outstanding(requests, stays_ms, there.tolist())
    traffic = split(requests, goes_to, devices=devices)
    served: dict[int, RequestOutcome] = {}
    outcome: ArmOutcome | None = None
    for number in range(devices):
        mine = np.flatnonzero(goes_to == number)
        if not len(mine):
            continue
        outcome = simulate(traffic.requests(number), device, "alone", slo=slo, seed=seed + number)
        served.update(zip(mine.tolist(), outcome.requests, strict=True))
    if outcome is None:
        raise InvalidArgument("a service without requests serves nothing")
    return replace(outcome, requests=tuple(served[number] for number in range(len(requests))))
