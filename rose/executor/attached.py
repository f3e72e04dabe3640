"""A device whose serving engine runs in another process, from the borrower's side."""

import logging
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from rose._core import Attachment, CudaDevice, HostGate, MappedWindow, PoolExport
from rose.closing import Closing, Once
from rose.compute import Gpu, tested_gate
from rose.errors import CorruptData, InvalidArgument, RetryLater, RoseError, Unavailable
from rose.executor.channel import Channel, close_all
from rose.executor.lent_window import LentWindow
from rose.executor.loans import BEATS, Loans
from rose.executor.messages import Hello, Leave, Rejected, Welcome
from rose.executor.revocation import OnRevoke
from rose.executor.rollout import RolloutLane
from rose.executor.safety import Reporting, Safety
from rose.executor.socket_line import SocketLine
from rose.executor.watcher import Watcher
from rose.memory import KVGeometry, KVSpace
from rose.units import MS_PER_S

_CONNECT_S: Final = 5.0
# The device may have to prepare its records of a large pool before it answers.
_WELCOME_S: Final = 30.0
_LOG: Final = logging.getLogger(__name__)


class AttachedDevice(Closing):
    """The borrower's end of a device that serves in another process.

    Lifecycle: `CoServing.attach` → `rollout` → … → `close`. When serving's process ends, or takes
    all loans back, the lane refuses steps and `gave_back` has the reason.
    """

    def __init__(self, channel: Channel, path: str | Path) -> None:
        """Made by `CoServing.attach`."""
        self._channel = channel
        self._path = path
        self._parts = ExitStack()
        self._loans: Loans | None = None
        self._lane: RolloutLane | None = None
        self.device_id = ""  # "cpu", or the UUID of serving's GPU; set by `rollout`
        self._once = Once()
        self.safety = Safety(self._give_back)

    @classmethod
    def connect(cls, path: str | Path) -> "AttachedDevice":
        """Connect to the device that listens at `path`.

        Raises:
            Unavailable: no device listens at `path`.
        """
        return cls(Channel.connect(path, timeout_s=_CONNECT_S), path)

    def rollout(
        self,
        geometry: KVGeometry,
        *,
        limit_bytes: int,
        on_revoke: OnRevoke | None = None,
        patience_ms: float = 10_000.0,
    ) -> RolloutLane:
        """Add the borrower; `geometry`, `limit_bytes` and `on_revoke` as in `CoServing.rollout`.

        Args:
            geometry: KV layout of the borrower's model.
            limit_bytes: largest size of the memory on loan.
            on_revoke: function that frees the blocks of `leaving` slabs when serving needs them.
            patience_ms: longest wait for a device that bars borrowers, because the last one crashed
                or harmed serving; the device names the time of the next try.

        Raises:
            InvalidArgument: called twice or after `close`, or the device rejects the geometry or
                the limit.
            RetryLater: the device bars borrowers for longer than `patience_ms`.
            Unavailable: the device lends to another borrower, or stopped lending; or this process
                does not see serving's GPU, or uses it through MPS.
        """
        if self._once.has_begun:
            raise InvalidArgument("this device is closed: attach again")
        if self._lane is not None:
            raise InvalidArgument("a device can have one borrower, and this device has one")
        welcome, descriptors = self._join(Hello(geometry, limit_bytes), patience_ms)
        self.device_id = welcome.device
        with ExitStack() as undo:
            undo.callback(close_all, descriptors)
            named = _by_name(welcome, descriptors)
            gpu = None if welcome.device == "cpu" else Gpu.of_serving(welcome.device)
            attachment, window = self._open(welcome, named, gpu.device if gpu else None)
            host_gate = HostGate.attach(named["gate"][0])
            kv = KVSpace(
                attachment,
                welcome.partition,
                geometry,
                header_index=welcome.header_index,
                window=window,
            )
        attachment.attend(every_ms=welcome.lease_ttl_ms / BEATS)
        lent_window = LentWindow(attachment, window) if window else None
        line = SocketLine(self._channel)
        loans = Loans(attachment, line, host_gate, lent_window, clock=attachment)
        line.on_lost = loans.end
        gate, _ = tested_gate(gpu, host_gate, window=welcome.gate_window, in_one_process=False)
        lane = RolloutLane(
            kv=kv,
            gate=gate,
            loans=loans,
            reporting=Reporting(self.safety),
            on_revoke=on_revoke,
            slabs_max=welcome.slabs_max,
            gpu=gpu,
            has_gates=welcome.has_gates,
        )
        watcher = Watcher(attachment, lane, loans, self.safety)
        if lent_window is not None:
            self._parts.callback(lent_window.close)
        self._parts.callback(attachment.close)
        self._parts.callback(watcher.close)
        self._loans, self._lane = loans, lane
        watcher.start()
        return lane

    def _open(
        self, welcome: Welcome, named: dict[str, list[int]], device: CudaDevice | None
    ) -> tuple[Attachment, MappedWindow | None]:
        """Map the pool, or with isolation "mapped" only the tenant's own header slab."""
        line = {
            "ledger_fd": named["ledger"][0],
            "mailbox_fd": named["mailbox"][0],
            "to_arbiter_fd": named["to_arbiter"][0],
            "to_tenant_fd": named["to_tenant"][0],
            "socket_fd": self._channel.fileno(),
        }
        shape = {
            "slab_bytes": welcome.slab_bytes,
            "slab_count": welcome.slab_count,
            "header_slabs": welcome.header_slabs,
        }
        if welcome.isolation == "shared":
            pool = PoolExport(
                named["pool"], sizes=welcome.object_bytes, is_on_host=device is None, **shape
            )
            return Attachment.create(pool=pool, device=device, **line), None
        window = MappedWindow.create(device=device, **shape)
        window.open_header(welcome.header_index, fd=named["header"][0])
        return Attachment.create_mapped(**shape, **line), window

    def _join(self, hello: Hello, patience_ms: float) -> tuple[Welcome, list[int]]:
        """Send `hello`, and again after the time that a rejection names, if `patience_ms` allow."""
        while True:
            try:
                return self._ask(hello)
            except RetryLater as barred:
                wait_ms = barred.retry_after_ms
                patience_ms -= wait_ms
                if patience_ms < 0:
                    raise
                _LOG.warning("rose: %s; trying again then", barred)
            self._channel.close()  # The device has closed its end after the rejection.
            threading.Event().wait(wait_ms / MS_PER_S)
            self._channel = Channel.connect(self._path, timeout_s=_CONNECT_S)

    def _ask(self, hello: Hello) -> tuple[Welcome, list[int]]:
        self._channel.send(hello)
        answer, descriptors = self._channel.receive(timeout_s=_WELCOME_S)
        match answer:
            case Welcome(descriptors=names) if len(names) == len(descriptors):
                return answer, descriptors
            case Rejected(sentence=sentence, is_final=is_final, retry_after_ms=wait_ms):
                close_all(descriptors)
                if wait_ms > 0:
                    raise RetryLater(sentence, retry_after_ms=wait_ms)
                raise (InvalidArgument if is_final else Unavailable)(sentence)
        close_all(descriptors)
        raise CorruptData("the device must answer Hello with Welcome or Rejected")

    @property
    def gave_back(self) -> str | None:
        """Reason why the device stopped lending; None while it lends."""
        if self.safety.cause is not None:
            return f"{type(self.safety.cause).__name__}: {self.safety.cause}"
        return self._loans.closed_because if self._loans else None

    def _give_back(self, _cause: BaseException) -> None:
        """Stop borrowing after a failure; slabs return as soon as their blocks are free."""
        if self._loans is not None:
            self._loans.close("rose failed in the borrower's process")

    def close(self) -> None:
        """Return all idle slabs, and disconnect. Idempotent.

        Stop the engine first: slabs that are still in use are overdue until the process ends.
        """
        self._once(self._close)

    def _close(self) -> None:
        if self._loans is not None:
            self._loans.end("this device was closed")
        self._parts.close()
        if self._lane is not None:
            with suppress(RoseError):  # Serving may have ended.
                self._channel.send(Leave())
        self._channel.close()


def _by_name(welcome: Welcome, descriptors: list[int]) -> dict[str, list[int]]:
    memory = {"shared": "pool", "mapped": "header"}.get(welcome.isolation)
    if memory is None:
        raise CorruptData(
            f"the isolation of a device must be 'shared' or 'mapped', got '{welcome.isolation}'"
        )
    named: dict[str, list[int]] = {
        name: [] for name in (memory, "ledger", "mailbox", "to_arbiter", "to_tenant", "gate")
    }
    for name, descriptor in zip(welcome.descriptors, descriptors, strict=True):
        named.setdefault(name, []).append(descriptor)
    missing = [name for name, found in named.items() if not found]
    if missing:
        raise CorruptData(f"Welcome must come with a descriptor named '{missing[0]}'")
    return named
