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
from rose.closing import Closing
from rose.compute import device_ordinal
from rose.errors import InvalidArgument
from rose.executor.device import CoServing
from rose.executor.serving import ServingLane
from rose.memory import choose_slab_bytes
from rose.slo import SLO, Policy
from rose.units import GIB, MIB

# Of a GPU's memory: the rest is for the driver's contexts and for fragments of an engine's heap.
_USABLE_SHARE: Final = 0.9
_ACTIVATION_BYTES: Final = 4 * GIB  # of each engine, as `rose plan` takes them
# Of the host's free memory; pages of the pool count only once they are written.
_HOST_SHARE: Final = 0.25
# Slabs that suit a borrower of any model: blocks of up to 2 MiB waste 1/16 of them at most. In a
# small pool loans would be too coarse.
_LONE_SLAB_BYTES: Final = 32 * MIB
_LONE_SLABS_MIN: Final = 32


def open(  # noqa: A001 (it is called rose.open)
    device: str,
    *,
    slo: SLO,
    pool_bytes: int | None = None,
    log_path: str | Path = "",
    policy: Policy | None = None,
) -> "Device":
    """Open a device for co-serving.

    Args:
        device: "cpu", "cuda" or "cuda:<n>".
        slo: latency that serving's requests were promised.
        pool_bytes: KV memory of both engines together. None: on a GPU, what the weights and
            activations of both models leave; on a CPU, a quarter of the free memory.
        log_path: file of the certificates, for `rose verify`; "" keeps only counts.
        policy: when rollouts may run, and what certificates rest on.

    Raises:
        InvalidArgument: the device is unknown.
        Unavailable: a GPU without a driver that rose can use.
    """
    return Device(device, slo=slo, pool_bytes=pool_bytes, log_path=log_path, policy=policy)


class Device(Closing):
    """One device, its serving engine and its borrower; made by `rose.open`.

    Its life: `open` → `serving` → `borrower` → … → `close`. `borrower` lays the pool out for both
    models; without one, the first use of serving does. When anything inside rose fails, the device
    gives all memory and compute back to serving, and `gave_back` says why.
    """

    def __init__(
        self,
        name: str,
        *,
        slo: SLO,
        pool_bytes: int | None,
        log_path: str | Path,
        policy: Policy | None,
    ) -> None:
        ordinal = device_ordinal(name)
        self._gpu = None if ordinal is None else CudaDevice.open(ordinal)
        self._name = name
        self._slo = slo
        self._pool_bytes = pool_bytes
        self._log_path = log_path
        self._policy = policy
        self._lock = threading.RLock()  # Guards all below: the pool is laid out once.
        self._needs: Needs | None = None
        self._add_serving: Callable[[CoServing], ServingLane] | None = None
        self._laid_out: tuple[CoServing, ServingLane] | None = None
        self._is_closed = False

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
            model: a preset name, a path of `config.json` or of its folder, its fields, a config of
                transformers, or a `KVGeometry`.
            reserve_bytes: KV memory that is never lent. None: what serving could need before a
                loan is back, by the model's cost.
            step_tokens: most tokens that one step computes.
            request_tokens: most tokens of one request.

        Raises:
            InvalidArgument: the device has a serving engine, or the model is unknown.
        """
        needs = needs_of(model)
        with self._lock:
            if self._needs is not None:
                raise InvalidArgument("this device has a serving engine: open one per device")
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
        """Add the engine that runs rollouts; from now on the device lends.

        Args:
            model: model of the rollouts, in any form that `serving` takes.
            limit_bytes: most KV memory it may borrow. None: all that serving can do without.

        Raises:
            InvalidArgument: there is no serving engine yet, or a borrower already; the model is
                unknown; or the pool cannot hold serving's longest request.
            Unavailable: rose has failed on this device, or this GPU has no gate that works.
        """
        needs = needs_of(model)
        executor, _ = self._lay_out(needs)
        if limit_bytes is None:
            limit_bytes = executor.arbiter.pool_bytes
        return Borrower(executor.rollout(needs.geometry, limit_bytes=limit_bytes))

    @property
    def executor(self) -> CoServing:
        """The device beneath, for readings and for engines that keep their own books."""
        return self._lay_out()[0]

    @property
    def gave_back(self) -> str | None:
        """Why the device stopped lending; None while all is well."""
        return None if self._laid_out is None else self.executor.gave_back

    def close(self) -> None:
        """Take everything back, and write the certificates out. Stop the engines first."""
        with self._lock:
            self._is_closed = True
            if self._laid_out is not None:
                self.executor.close()

    # ---- the layout -----------------------------------------------------------------------------

    def _lay_out(self, borrower: Needs | None = None) -> tuple[CoServing, ServingLane]:
        """Return the device beneath and serving's lane; the first call lays the pool out."""
        with self._lock:
            if self._laid_out is None:
                if self._needs is None or self._add_serving is None:
                    raise InvalidArgument("add the serving engine first: device.serving(model)")
                if self._is_closed:
                    raise InvalidArgument("this device is closed: open another")
                pool_bytes = self._pool_bytes
                if pool_bytes is None:
                    pool_bytes = self._pool_left_by(self._needs, borrower)
                executor = CoServing.open(
                    self._name,
                    pool_bytes=pool_bytes,
                    slab_bytes=_slab_bytes(self._needs, borrower, pool_bytes=pool_bytes),
                    log_path=self._log_path,
                    policy=self._policy,
                )
                self._laid_out = executor, self._add_serving(executor)
            return self._laid_out

    def _pool_left_by(self, *engines: Needs | None) -> int:
        """Return the bytes that the engines leave for KV."""
        if self._gpu is None:
            free_bytes = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
            return int(_HOST_SHARE * free_bytes)
        free_bytes, total_bytes = self._gpu.memory_info()
        weights = sum(one.weight_bytes for one in engines if one is not None)
        taken = weights + len(engines) * _ACTIVATION_BYTES
        left = int(_USABLE_SHARE * min(total_bytes - taken, free_bytes))
        if left <= 0:
            raise InvalidArgument(
                f"both models and their activations take {taken / GIB:.1f} GiB of the "
                f"{total_bytes / GIB:.1f} GiB of {self._name}: no memory is left for KV"
            )
        return left


def _slab_bytes(serving: Needs, borrower: Needs | None, *, pool_bytes: int) -> int:
    """Return the size of slabs that suit both models, or serving's and probably any other."""
    if borrower is not None:
        return choose_slab_bytes(serving.geometry, borrower.geometry)
    if pool_bytes < _LONE_SLABS_MIN * _LONE_SLAB_BYTES:
        return choose_slab_bytes(serving.geometry)
    return choose_slab_bytes(serving.geometry, page_bytes=_LONE_SLAB_BYTES)
