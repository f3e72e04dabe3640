"""Build the parts of a device."""

import os
import resource
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rose._core import (
    Arbiter,
    Clock,
    Creditor,
    Demand,
    HostGate,
    LatencyModel,
    MoveLog,
    ServingState,
    ServingSteps,
    SupplyWatch,
    Watchdog,
)
from rose.compute import Gpu
from rose.errors import InvalidArgument, check
from rose.executor.certified import certificate_log, certified_creditor
from rose.executor.keeper import Keeper
from rose.executor.lender import Lender
from rose.executor.safety import Safety
from rose.executor.serving import ServingLane, ServingLimits
from rose.memory import Isolation, KVGeometry, KVSpace, choose_slab_bytes
from rose.slo import SLO, Policy
from rose.slo.latency_file import load_latency_model, new_latency_model
from rose.slo.policy import RESIDUAL_WINDOW, WATCHDOG_MS
from rose.slo.prior import ModelCost, prior_ms
from rose.units import GIB, MIB, ceil_div

SERVING: Final = 0
"""Id of serving's partition, and index of its header slab."""
BORROWER: Final = 1
"""Index of the borrower's header slab."""
_TENANTS: Final = 2
_SLABS_MAX: Final = (1 << 31) - 1  # The core counts slabs in 32 bits.
_OTHER_DESCRIPTORS: Final = 64  # descriptors of serving's sockets, bells and files


@dataclass(frozen=True, slots=True)
class Opened:
    """The checked arguments of `CoServing.open`."""

    gpu: Gpu | None
    pool_bytes: int
    slab_bytes: int | None
    log_path: str
    latency_path: Path | None
    isolation: Isolation
    policy: Policy
    clock: Clock


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a device with a serving engine. Its threads are not started yet.

    Args:
        slo: serving's latency targets.
        model: latency model of serving's steps.
        identity: text that names the device, model and step size of the steps that `model` learned
            from; a latency file with another identity is ignored.
        lender: the memory policy, with the arbiter, the gate and the log of certificates.
        creditor: thread that grants quanta.
        keeper: thread that enforces deadlines.
        serving: serving's lane.
    """

    slo: SLO
    model: LatencyModel
    identity: str
    lender: Lender
    creditor: Creditor
    keeper: Keeper
    serving: ServingLane


def build(
    opened: Opened,
    geometry: KVGeometry,
    *,
    slo: SLO,
    reserve_bytes: int | None,
    limits: ServingLimits,
    cost: ModelCost | None,
    safety: Safety,
    tend: Callable[[], None],
) -> Parts:
    """Lay out the pool and build all parts of serving. On an error everything is released.

    Args:
        opened: arguments of `CoServing.open`.
        geometry: KV layout of serving's model.
        slo: serving's latency targets.
        reserve_bytes: memory that is never lent; None: the demand of an idle device.
        limits: largest sizes of serving's work.
        cost: work of a step of serving's model, from which the first latency estimates are
            computed; None: the estimates of the policy.
        safety: context manager for rose's own calls; it suppresses their failures.
        tend: function that the keeper calls.

    Raises:
        InvalidArgument: the pool is too small or has too many slabs, or the reserve is larger than
            the pool.
        CorruptData: the file at `latency_path` was not written by rose.
    """
    policy, clock = opened.policy, opened.clock
    slab_bytes = opened.slab_bytes or choose_slab_bytes(geometry)
    slabs = _slab_count(opened, slab_bytes)
    model, identity = _latency_model(opened, geometry, limits.step_tokens, cost)
    demand = Demand(
        model,
        blocks_per_slab=geometry.blocks_per_slab(slab_bytes),
        block_tokens=geometry.block_tokens,
        step_tokens=limits.step_tokens,
        request_tokens=limits.request_tokens,
        burst_requests=policy.burst_requests,
        horizon_ms=policy.revoke_ms,
        memory_ms=policy.arrival_memory_ms,
        epsilon=policy.epsilon,
        window=RESIDUAL_WINDOW,
        clock=clock,
    )
    reserve_slabs = _reserve_slabs(opened, reserve_bytes, demand, slab_bytes, slabs)
    needed = geometry.blocks_for(limits.request_tokens)
    if needed > slabs * demand.blocks_per_slab:
        raise InvalidArgument(
            f"a request of {limits.request_tokens} tokens needs {needed} blocks, more than a pool "
            f"of {opened.pool_bytes} bytes holds: lower request_tokens or raise pool_bytes"
        )
    log = certificate_log(
        opened.log_path,
        slo=slo,
        policy=policy,
        clock=clock,
        slabs=slabs,
        partitions=_TENANTS,
        blocks_per_slab=demand.blocks_per_slab,
        block_tokens=geometry.block_tokens,
        max_request_tokens=limits.request_tokens,
        max_batch_tokens=limits.step_tokens,
        burst_requests=policy.burst_requests,
        revoke_ms=policy.revoke_ms,
    )
    with ExitStack() as undo:
        undo.callback(log.close)
        arbiter = Arbiter.create(
            slab_bytes=slab_bytes,
            slab_count=slabs,
            header_slabs=_TENANTS,
            clock=clock,
            observer=MoveLog(log),
            device=opened.gpu.device if opened.gpu else None,
            object_bytes_max=slab_bytes if opened.isolation == "mapped" else GIB,
        )
        partition = arbiter.add_partition("serving", reserve_slabs=reserve_slabs, limit_slabs=slabs)
        check(partition == SERVING, "serving must be the first partition")
        kv = KVSpace(arbiter, partition, geometry, header_index=SERVING)
        arbiter.take(partition, reserve_slabs)
        gate = HostGate(clock=clock)
        state = ServingState(log, gate=gate)
        watch = SupplyWatch(arbiter, partition, demand, state)
        watchdog = Watchdog(gate, log=log, after_ms=WATCHDOG_MS, clock=clock)
        lender = Lender(
            arbiter=arbiter,
            serving=partition,
            serving_kv=kv,
            gate=gate,
            state=state,
            demand=demand,
            watch=watch,
            log=log,
            policy=policy,
            clock=clock,
        )
        creditor = certified_creditor(
            gate,
            state,
            model,
            log,
            policy=policy,
            context_tokens=limits.request_tokens,
            step_tokens=limits.step_tokens,
            clock=clock,
            watchdog=watchdog,
        )
        steps = ServingSteps(
            gate,
            state,
            model,
            log,
            demand=demand,
            supply=watch,
            creditor=creditor,
            clock=clock,
        )
        serving = ServingLane(
            lender=lender,
            model=model,
            safety=safety,
            steps=steps,
            watchdog=watchdog,
            gpu=opened.gpu,
            limits=limits,
            creditor=creditor,
        )
        keeper = Keeper(tend, arbiter, every_ms=policy.tend_every_ms, on_failure=safety.report)
        undo.pop_all()
    return Parts(slo, model, identity, lender, creditor, keeper, serving)


def _slab_count(opened: Opened, slab_bytes: int) -> int:
    """Return the number of slabs in the pool, not counting the headers."""
    slabs = opened.pool_bytes // slab_bytes - _TENANTS
    if slabs < 1:
        raise InvalidArgument(
            f"a pool of {opened.pool_bytes // MIB} MiB has no room for {_TENANTS} headers and a "
            f"slab of {slab_bytes / MIB:g} MiB: raise pool_bytes"
        )
    if slabs > _SLABS_MAX:
        raise InvalidArgument(
            f"a pool must have at most {_SLABS_MAX} slabs, got {slabs} in {opened.pool_bytes} "
            "bytes: lower pool_bytes or raise slab_bytes"
        )
    objects = slabs + _TENANTS
    # With "mapped" on a CPU each slab is a memory object with its own descriptor.
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    is_many = opened.isolation == "mapped" and opened.gpu is None
    if is_many and objects + _OTHER_DESCRIPTORS > limit:
        raise InvalidArgument(
            f"isolation='mapped' keeps a file descriptor for each of {objects} slabs, but this "
            f"process may have at most {limit}: raise slab_bytes, or the limit (ulimit -n)"
        )
    return slabs


def _reserve_slabs(
    opened: Opened, reserve_bytes: int | None, demand: Demand, slab_bytes: int, slabs: int
) -> int:
    if reserve_bytes is None:
        return min(ceil_div(demand.blocks(running=0), demand.blocks_per_slab), slabs)
    reserve_slabs = ceil_div(reserve_bytes, slab_bytes)
    if not 0 <= reserve_slabs <= slabs:
        raise InvalidArgument(
            f"reserve_bytes must be from 0 to {slabs * slab_bytes}, the size of a pool of "
            f"{opened.pool_bytes} bytes without its headers, got {reserve_bytes}"
        )
    return reserve_slabs


def _latency_model(
    opened: Opened, geometry: KVGeometry, step_tokens: int, cost: ModelCost | None
) -> tuple[LatencyModel, str]:
    """Return the model saved for this identity, or else a new model; also return the identity."""
    name = "cpu" if opened.gpu is None else opened.gpu.device.name
    cores = len(os.sched_getaffinity(0))
    identity = f"{name}, {cores} cores; {geometry}, {cost}; steps of {step_tokens} tokens"
    if opened.latency_path is not None:
        learned = load_latency_model(opened.latency_path, opened.policy, identity=identity)
        if learned is not None:
            return learned, identity
    prior = None if cost is None else prior_ms(name, cost)
    return new_latency_model(opened.policy, step_tokens=step_tokens, prior_ms=prior), identity
