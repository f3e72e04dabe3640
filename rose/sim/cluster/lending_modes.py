"""The schemes as a fluid: what each makes of a serving step, of a prompt and of idle time."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from rose.errors import InvalidArgument
from rose.executor.probing import RENEWAL_SHARE
from rose.sim.device import DeviceModel, Sharing
from rose.sim.simulation import SLOWDOWNS
from rose.slo import SLO

Column = npt.NDArray[np.float64]

FLUID_SCHEMES: Final = (
    "alone", "rose_idle", "rose", "rose_slack", "rose_paper", "valve", "static_split", "share_all",
)  # fmt: skip

# The 0.99 quantile of the normal distribution: what a step or a segment takes at most, by ε = 0.01
# and by `segment_share`.
_Z: Final = 2.326


@dataclass(frozen=True, slots=True)
class FluidMode:
    """What a scheme does, on average.

    Args:
        slowdown: of serving's steps.
        busy_share: that rollouts get beside serving's steps.
        idle_share: while there is no request.
        lent_ms: (step_ms) -> before a decode step of so long, how long rollouts go first.
        lent_share: of that time, that is work.
        prompt_ms: how long rollouts go first before each step of a prompt, while it is in time.
        piece_ms: of rollout work that runs on when a request arrives, half of it on average.
        reopens_ms: (d,) longest steps of devices -> from the end of the last request to the first
            rollout work.
    """

    slowdown: float
    busy_share: float
    idle_share: float
    lent_ms: Callable[[Column], Column]
    lent_share: float
    prompt_ms: float
    piece_ms: float
    reopens_ms: Callable[[Column], Column]


def fluid_mode(scheme: str, device: DeviceModel, slo: SLO) -> FluidMode:
    """Return a scheme as a fluid.

    Raises:
        InvalidArgument: the scheme is not one of `FLUID_SCHEMES`.
    """
    if scheme not in FLUID_SCHEMES:
        raise InvalidArgument(
            f"scheme {scheme!r} is not known as a fluid: use {', '.join(FLUID_SCHEMES)}, or lend "
            f"exactly"
        )
    if scheme in {"share_all", "static_split"}:
        return _beside(device, Sharing.TOGETHER if scheme == "share_all" else Sharing.SPLIT)
    return _in_turns(scheme, device, slo)


def _beside(device: DeviceModel, sharing: Sharing) -> FluidMode:
    return FluidMode(
        slowdown=device.serving_slowdown(sharing, is_beside=True),
        busy_share=1 / device.rollout_slowdown(sharing, is_beside=True),
        idle_share=1 / device.rollout_slowdown(sharing, is_beside=False),
        lent_ms=_none,
        lent_share=0.0,
        prompt_ms=0.0,
        piece_ms=0.0,
        reopens_ms=_none,
    )


def _in_turns(scheme: str, device: DeviceModel, slo: SLO) -> FluidMode:
    step_ms = device.layers * device.layer_ms
    segment_ms = device.layers_per_segment * device.layer_ms + device.gate_ms
    word_ms = 2 * device.signal_ms  # to the rollouts, and back to serving
    lent_ms: Callable[[Column], Column] = _none
    prompt_ms, piece_ms = 0.0, segment_ms
    lent_share = idle_share = device.layers_per_segment * device.layer_ms / segment_ms
    reopens = _constant(device.signal_ms)
    if scheme in SLOWDOWNS:
        idle_share *= 1 - RENEWAL_SHARE
    if scheme == "rose_paper":
        lent_ms, prompt_ms, piece_ms = _steps(step_ms + word_ms, slo), step_ms + word_ms, step_ms
        lent_share, idle_share = step_ms / (step_ms + word_ms), 1.0
    elif scheme == "rose_slack":
        lent_ms = _quanta(segment_ms, word_ms, device.noise, slo)
    elif scheme == "rose":
        lent_ms = _budget(_quanta(segment_ms, word_ms, device.noise, slo), SLOWDOWNS[scheme])
        lent_share *= segment_ms / (segment_ms + word_ms)
    elif scheme == "valve":
        reopens = _cool_down
    elif scheme == "alone":
        idle_share = piece_ms = 0.0
    return FluidMode(
        slowdown=1.0,
        busy_share=0.0,
        idle_share=idle_share,
        lent_ms=lent_ms,
        lent_share=lent_share,
        prompt_ms=prompt_ms,
        piece_ms=piece_ms,
        reopens_ms=reopens,
    )


def _none(step_ms: Column) -> Column:
    return np.zeros_like(step_ms)


def _constant(ms: float) -> Callable[[Column], Column]:
    return lambda column: np.full_like(column, ms)


def _cool_down(longest_ms: Column) -> Column:
    return 2 * longest_ms


def _steps(rollout_ms: float, slo: SLO) -> Callable[[Column], Column]:
    """Return the paper's rule: one rollout step, if the next step would be in time at once."""
    return lambda step_ms: np.where(step_ms < slo.tpot_ms, rollout_ms, 0.0)


def _quanta(
    segment_ms: float, word_ms: float, noise: float, slo: SLO
) -> Callable[[Column], Column]:
    """Return rose's: as many segments as the next token's deadline admits, at their upper ends."""
    margin = math.exp(_Z * noise - noise**2 / 2)

    def lent_ms(step_ms: Column) -> Column:
        room_ms = slo.tpot_ms - word_ms - margin * step_ms
        segments = np.maximum(np.floor(room_ms / (margin * segment_ms)), 0.0)
        return np.where(segments > 0, segments * segment_ms + word_ms, 0.0)

    return lent_ms


def _budget(quanta: Callable[[Column], Column], slowdown: float) -> Callable[[Column], Column]:
    """Return rose's with a budget: what fits is lent until a share of the steps' time is spent."""
    return lambda step_ms: np.minimum(quanta(step_ms), slowdown * step_ms)
