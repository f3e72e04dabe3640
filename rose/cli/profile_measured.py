"""What was measured of serving, however it was: the same shape for an engine and for a trace."""

from dataclasses import dataclass
from typing import Final

from rose.errors import InvalidArgument
from rose.scheduler.broker import Observation, ServingDevice
from rose.slo import SLO
from rose.units import GIB

# What tails are told by: fewer requests than that, and a P99 is one of them.
DEVICE_NAME: Final = "device"


@dataclass(frozen=True, slots=True)
class Pool:
    """The memory that is looked at.

    Args:
        kv_bytes: of serving's KV pool.
        reserve_bytes: of it that no loan touches.
        slab_bytes: the least that is lent.
    """

    kv_bytes: int
    reserve_bytes: int
    slab_bytes: int

    def device(self, slo: SLO) -> ServingDevice:
        """Return the device with this pool and these targets.

        Raises:
            InvalidArgument: the reserve leaves nothing of the pool.
        """
        if self.reserve_bytes >= self.kv_bytes:
            raise InvalidArgument(
                f"a reserve of {self.reserve_bytes / GIB:.1f} GiB leaves nothing of a KV pool of "
                f"{self.kv_bytes / GIB:.1f} GiB; give a smaller --reserve-gib"
            )
        return ServingDevice(
            name=DEVICE_NAME,
            kv_bytes=self.kv_bytes,
            reserve_bytes=self.reserve_bytes,
            slab_bytes=self.slab_bytes,
            slo=slo,
        )


@dataclass(frozen=True, slots=True)
class Compute:
    """What rollouts would get of the device's compute under one pair of targets.

    Args:
        share: of the time, 0 to 1; None when it cannot be said.
        met_alone: the share of requests, or of readings, in which serving without rollouts meets
            both targets; None when there were none.
        excess_late_share: of all tokens, late because of rollouts; None where rollouts did not run.
    """

    share: float | None
    met_alone: float | None
    excess_late_share: float | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """How serving was over time.

    Args:
        source: the URL, or the name of the trace.
        kind: "engine" or "trace".
        how: one sentence on how compute was found.
        pool: of the device.
        observations: in the order of time; their device's targets are any.
        compute: for each of `slos`.
        slos: that are asked about.
        every_ms: between two observations, as planned.
        failures: readings that failed, as (time, one sentence).
        settings: what it was asked for.
        is_complete: False when it was interrupted.
    """

    source: str
    kind: str
    how: str
    pool: Pool
    observations: tuple[Observation, ...]
    compute: tuple[Compute, ...]
    slos: tuple[SLO, ...]
    every_ms: float
    failures: tuple[tuple[float, str], ...]
    settings: dict[str, object]
    is_complete: bool
