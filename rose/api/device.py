"""`rose.open`: one device that a serving engine shares with a borrower."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rose._core import CudaDevice
from rose.api.borrower import Borrower
from rose.api.models import Model, Needs, needs_of
from rose.api.serving import Serving
from rose.closing import Closing, Once
from rose.compute import device_ordinal
from rose.errors import InvalidArgument
from rose.executor.device import CoServing
from rose.executor.serving import ServingLane
from rose.memory import Isolation, check_isolation, choose_slab_bytes
from rose.slo import SLO, Policy
from rose.units import GIB, MIB

# Share of a GPU's memory that is used; the rest covers driver contexts and heap fragmentation.
_USABLE_SHARE: Final = 0.9
_ACTIVATION_BYTES: Final = 4 * GIB  # per engine, the default of `rose plan`
# Share of the host's free memory for the pool. Pages of the pool use memory only once written.
_HOST_SHARE: Final = 0.25
# Slab size while the borrower's model is unknown: blocks of up to 2 MiB waste at most 1/16 of a
# slab. A pool with fewer than `_LONE_SLABS_MIN` such slabs uses smaller ones, so that loans do not
# get too coarse.
_LONE_SLAB_BYTES: Final = 32 * MIB
_LONE_SLABS_MIN: Final = 32


def open(  # noqa: A001 (it is called rose.open)
    device: str,
    *,
    slo: SLO,
    pool_bytes: int | None = None,
    log_path: str | Path = "",
    isolation: Isolation = "shared",
    policy: Policy | None = None,
) -> "Device":
    """Open a device for co-serving.

    Args:
        device: "cpu", "cuda" or "cuda:<n>".
        slo: latency targets of serving's requests.
        pool_bytes: KV memory of both engines together. None: on a GPU, the memory that the weights
            and activations of both models leave; on a CPU, a quarter of the free memory.
        log_path: path of the certificate log, for `rose verify`; "": no file is written.
        isolation: memory that a borrower in another process can access. "shared": the whole pool.
            "mapped": only slabs that were lent to it, which are zeroed first. "mapped" needs a
            borrower in another process: call `listen` here and `rose.borrow` there.
        policy: limits and evidence rules for lending; None: the defaults.

    Raises:
        InvalidArgument: the device or the isolation is unknown.
        Unavailable: the GPU has no driver that rose can use.
    """
    check_isolation(isolation)
    return Device(
        device,
        slo=slo,
        pool_bytes=pool_bytes,
        log_path=log_path,
        isolation=isolation,
        policy=policy,
    )


class Device(Closing):
    """One device, its serving engine and its borrower; made by `rose.open`.

    Call `serving` first, then `borrower` or `listen`, and `close` at the end. `borrower` lays out
    the pool for both models; if it was not called, the first use of the serving engine lays out the
    pool. If anything inside rose fails, the device returns all memory and compute to serving, and
    `gave_back` has the reason.
    """

    def __init__(
        self,
        name: str,
        *,
        slo: SLO,
        pool_bytes: int | None,
        log_path: str | Path,
        isolation: Isolation,
        policy: Policy | None,
    ) -> None:
        ordinal = device_ordinal(name)
        self._gpu = None if ordinal is None else CudaDevice.open(ordinal)
        self._name = name
        self._slo = slo
        self._pool_bytes = pool_bytes
        self._log_path = log_path
        self._isolation = isolation
        self._policy = policy
        self._lock = threading.RLock()  # Guards the fields below; the pool is laid out once.
        self._needs: Needs | None = None
        self._add_serving: Callable[[CoServing], ServingLane] | None = None
        self._laid_out: tuple[CoServing, ServingLane] | None = None
        self._once = Once()

    def serving(
        self,
        model: Model,
        *,
        reserve_bytes: int | None = None,
        step_tokens: int = 8192,
        request_tokens: int = 32768,
    ) -> Serving:
        """Add the serving engine.

        Args:
            model: a preset name, the path of a `config.json` or its folder, the fields of that
                file, a config of transformers, or a `KVGeometry`.
            reserve_bytes: KV memory that is never lent. None: the most that serving can need while
                a loan is being returned, estimated from the model's cost.
            step_tokens: maximum tokens per step.
            request_tokens: maximum tokens per prompt.

        Raises:
            InvalidArgument: the device already has a serving engine, or the model is unknown.
        """
        needs = needs_of(model)
        with self._lock:
            if self._needs is not None:
                raise InvalidArgument(
                    "this device already has a serving engine: open another device for a second"
                )
            self._needs = needs
            self._add_serving = lambda executor: executor.serving(
                needs.geometry,
                slo=self._slo,
                reserve_bytes=reserve_bytes,
                step_tokens=step_tokens,
                request_tokens=request_tokens,
                cost=needs.cost,
            )
        return Serving(lambda: self._lay_out()[1])

    def borrower(self, model: Model, *, limit_bytes: int | None = None) -> Borrower:
        """Add the engine that runs rollouts; lending starts.

        Args:
            model: model of the rollouts, in any form that `serving` accepts.
            limit_bytes: maximum KV memory on loan. None: all memory that serving does not need.

        Raises:
            InvalidArgument: the device has no serving engine yet, or already has a borrower; the
                model is unknown; the pool cannot hold serving's longest request; or the isolation
                is "mapped".
            Unavailable: rose has failed on this device, or no gate works on this GPU.
        """
        needs = needs_of(model)
        executor, _ = self._lay_out(needs)
        if limit_bytes is None:
            limit_bytes = executor.arbiter.pool_bytes
        return Borrower(executor.rollout(needs.geometry, limit_bytes=limit_bytes))

    def listen(self, path: str | Path) -> None:
        """Let a borrower of another process attach with `rose.borrow(path, model)`; lending starts.

        Args:
            path: path of the socket to create; only the same user can connect.

        Raises:
            InvalidArgument: the device has no serving engine yet, already listens, or already has a
                borrower.
            Unavailable: the socket cannot be created, or rose has failed on this device.
        """
        self.executor.listen(path)

    @property
    def executor(self) -> CoServing:
        """The underlying device, for measurements and for engines that manage their own blocks."""
        return self._lay_out()[0]

    @property
    def gave_back(self) -> str | None:
        """Reason why the device stopped lending; None while it lends."""
        return None if self._laid_out is None else self.executor.gave_back

    def close(self) -> None:
        """Take all loans back and flush the certificate log. Stop the engines first."""
        self._once(self._close)

    def _close(self) -> None:
        with self._lock:
            if self._laid_out is not None:
                self.executor.close()

    # ---- the layout -----------------------------------------------------------------------------

    def _lay_out(self, borrower: Needs | None = None) -> tuple[CoServing, ServingLane]:
        """Return the underlying device and serving's lane; the first call lays out the pool."""
        with self._lock:
            if self._laid_out is None:
                if self._needs is None or self._add_serving is None:
                    raise InvalidArgument("add the serving engine first: device.serving(model)")
                if self._once.has_begun:
                    raise InvalidArgument("this device is closed: open another")
                pool_bytes = self._pool_bytes
                if pool_bytes is None:
                    pool_bytes = self._pool_left_by(self._needs, borrower)
                executor = CoServing.open(
                    self._name,
                    pool_bytes=pool_bytes,
                    slab_bytes=_slab_bytes(self._needs, borrower, pool_bytes=pool_bytes),
                    log_path=self._log_path,
                    isolation=self._isolation,
                    policy=self._policy,
                )
                self._laid_out = executor, self._add_serving(executor)
            return self._laid_out

    def _pool_left_by(self, *engines: Needs | None) -> int:
        """Return the bytes that remain for KV beside the weights and activations of `engines`."""
        if self._gpu is None:
            free_bytes = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
            return int(_HOST_SHARE * free_bytes)
        free_bytes, total_bytes = self._gpu.memory_info()
        weights = sum(one.weight_bytes for one in engines if one is not None)
        taken = weights + len(engines) * _ACTIVATION_BYTES
        left = int(_USABLE_SHARE * min(total_bytes - taken, free_bytes))
        if left <= 0:
            raise InvalidArgument(
                f"{self._name} has {total_bytes / GIB:.1f} GiB, of which {free_bytes / GIB:.1f} "
                f"GiB are free, and models with activations take {taken / GIB:.1f} GiB, so no "
                "memory is left for KV: use smaller models, or end other programs on the device"
            )
        return left


def _slab_bytes(serving: Needs, borrower: Needs | None, *, pool_bytes: int) -> int:
    """Return a slab size for both models; `borrower` is None while its model is unknown."""
    if borrower is not None:
        return choose_slab_bytes(serving.geometry, borrower.geometry)
    if pool_bytes < _LONE_SLABS_MIN * _LONE_SLAB_BYTES:
        return choose_slab_bytes(serving.geometry)
    return choose_slab_bytes(serving.geometry, page_bytes=_LONE_SLAB_BYTES)
