"""What a device lends while it serves, quantum by quantum, as the machine of `rose.sim` says."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from rose.errors import InvalidArgument
from rose.sim.cluster.lending_columns import joined, mean_share, peak_context
from rose.sim.cluster.lending_felt import ServingFelt, felt
from rose.sim.cluster.lending_kv import KvPool, KvRule, PublishedKv, ReservedKv, RoseKv
from rose.sim.cluster.world import Lending
from rose.sim.device import DeviceModel
from rose.sim.outcome import ArmOutcome
from rose.sim.request import Request
from rose.sim.simulation import simulate
from rose.slo import SLO, Policy
from rose.units import NS_PER_MS

# The machine runs on behind the horizon for so many rollout steps: the work there has ended then.
_STEPS_BEHIND: Final = 10
_SAME_SPEED: Final = 0.1


@dataclass(frozen=True, slots=True)
class LendingArm:
    """How a device lends its compute, and how its memory.

    Args:
        scheme: one of `rose.sim.SCHEMES`.
        kv: whose rule the KV pool follows.
    """

    scheme: str
    kv: KvRule


def lending_arms(*, rl_step_ms: float, reserved_share: float = 0.25) -> dict[str, LendingArm]:
    """Return rose's modes and what they are compared with, by name.

    Args:
        rl_step_ms: how often the published rule lets a budget grow, > 0.
        reserved_share: of the pool that a reserved part has; of the compute, `split_share` of the
            device says so.
    """
    return {
        "rose_idle": LendingArm("rose_idle", RoseKv()),
        "rose": LendingArm("rose", RoseKv()),
        "rose_slack": LendingArm("rose_slack", RoseKv()),
        "rose_published": LendingArm("rose_paper", PublishedKv(rl_step_ms)),
        "valve": LendingArm("valve", RoseKv()),
        # ElasticTrainer-like.
        "reserved": LendingArm("static_split", ReservedKv(reserved_share)),
        # Serving's contexts find no room then, which the machine does not model: the most there is.
        "share_all": LendingArm("share_all", ReservedKv(1.0)),
    }


def lend_exactly(
    requests: Sequence[Request],
    device: DeviceModel,
    arm: LendingArm,
    *,
    pool: KvPool,
    slo: SLO,
    horizon_ms: float,
    seed: int,
    policy: Policy | None = None,
    alone: ArmOutcome | None = None,
    kv_bin_ms: float = 100.0,
    share_bin_ms: float | None = None,
) -> tuple[Lending, ServingFelt]:
    """Serve a trace with endless rollout work behind it, and return what was lent.

    The share is rollout work over time, in milliseconds of an undisturbed device: one row for each
    quantum that ran, and one for each stretch between. Noise can make work cheaper than it counts;
    a share is at most 1. The loan of memory in a bin is what the rule makes of the most that
    serving's contexts had in it, so it shrinks before they grow.

    Args:
        requests: by arrival, up to the horizon.
        device: what things cost.
        arm: how it lends.
        pool: of the device.
        slo: what serving was promised.
        horizon_ms: where the timeline ends, > 0. Requests are served to their end.
        seed: of the noise, >= 0.
        policy: rose's knobs, as for `simulate`.
        alone: of the same requests and seed, if it is known already.
        kv_bin_ms: resolution of the memory, > 0.
        share_bin_ms: None for every quantum; else bins with their mean, > 0.

    Raises:
        InvalidArgument: there are no requests, one comes after the horizon, or what `simulate`
            refuses.
    """
    if not requests or not requests[-1].arrival_ms <= horizon_ms < np.inf:
        raise InvalidArgument(f"a timeline of {horizon_ms} ms needs requests, all of them in it")
    watch = _Watch()
    outcome = simulate(
        requests,
        device,
        arm.scheme,
        slo=slo,
        policy=policy,
        seed=seed,
        observer=watch,
        until_ms=horizon_ms + _STEPS_BEHIND * device.layers * device.layer_ms,
    )
    if alone is None:
        alone = simulate(requests, device, "alone", slo=slo, seed=seed)
    at_ms, share = watch.quanta(device.layer_ms)
    if share_bin_ms is not None:
        at_ms, share = mean_share(at_ms, share, bin_ms=share_bin_ms, horizon_ms=horizon_ms)
    context = peak_context(*watch.contexts(), bin_ms=kv_bin_ms, horizon_ms=horizon_ms)
    lent = arm.kv.lent_slabs(pool.used_slabs(context)[:, None], pool, bin_ms=kv_bin_ms)[:, 0]
    lending = joined(
        at_ms,
        share,
        kv_at_ms=kv_bin_ms * np.arange(len(lent), dtype=np.float64),
        kv_tokens=lent * pool.rollout_tokens,
        horizon_ms=horizon_ms,
    )
    return lending, felt(outcome, alone, slo=slo)


class _Watch:
    """Notes when rollouts run, and what serving's contexts hold."""

    def __init__(self) -> None:
        self._began: list[int] = []
        self._ended: list[int] = []
        self._layers: list[int] = []
        self._context_at: list[int] = [0]
        self._context: list[int] = [0]

    def __call__(self, at_ns: int, what: str, number: int) -> None:
        """Observe."""
        match what:
            case "segment":
                self._began.append(at_ns)
            case "segment_end":
                self._ended.append(at_ns)
            case "layers":
                self._layers.append(number)
            case "context":
                self._context_at.append(at_ns)
                self._context.append(number)

    def quanta(self, layer_ms: float) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return (times, shares): segments that follow each other at one speed are one row."""
        ended = np.array(self._ended, dtype=np.float64) / NS_PER_MS
        began = np.array(self._began[: len(ended)], dtype=np.float64) / NS_PER_MS
        if not len(ended):
            return np.zeros(1), np.zeros(1)
        segment_ms = layer_ms * np.array(self._layers, dtype=np.float64)
        # The first of a quantum waits for a word, which makes it slower by a little.
        speed = segment_ms / (ended - began)
        is_other = np.abs(np.diff(speed)) > _SAME_SPEED * speed[1:]
        first = np.flatnonzero(np.concatenate(([True], (began[1:] > ended[:-1]) | is_other)))
        last = np.append(first[1:], len(ended)) - 1
        work_ms = np.add.reduceat(segment_ms, first)
        at_ms = np.stack((began[first], ended[last]), axis=1).ravel()
        share = np.zeros_like(at_ms)
        share[::2] = np.minimum(1.0, work_ms / (ended[last] - began[first]))
        return np.concatenate(([0.0], at_ms)), np.concatenate(([0.0], share))

    def contexts(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return (times, tokens): each holds until the next."""
        at_ms = np.array(self._context_at, dtype=np.float64) / NS_PER_MS
        return at_ms, np.array(self._context, dtype=np.float64)
