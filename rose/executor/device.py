"""`CoServing`: one device that serving shares with a borrower."""

import atexit
import os
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rose._core import BootClock, Clock, CloseReason, Creditor, GateChoice
from rose.closing import Closing
from rose.compute import Gpu, device_ordinal, tested_gate
from rose.errors import InvalidArgument, RoseError, Unavailable
from rose.events import Reason
from rose.executor.borrower import LocalBorrower
from rose.executor.reading import DeviceReading
from rose.executor.refusals import REASONS, read_refusals
from rose.executor.revocation import OnRevoke
from rose.executor.rollout import RolloutLane
from rose.executor.safety import Reporting, Safety
from rose.executor.serving import ServingLane, ServingLimits
from rose.executor.wiring import BORROWER, SERVING, Opened, Parts, build
from rose.memory import (
    ISOLATIONS,
    Isolation,
    KVGeometry,
    KVGroups,
    choose_slab_bytes,
    groups_of,
)
from rose.memory.geometry import WASTE_MAX
from rose.slo import SLO, Policy
from rose.slo.latency_file import save_latency_model
from rose.slo.policy import GATE_WINDOW
from rose.slo.prior import ModelCost
from rose.units import MIB, NS_PER_MS

if TYPE_CHECKING:  # Messages between processes need an extra of this package.
    from rose._core import Process
    from rose.executor.attached import AttachedDevice
    from rose.executor.channel import Channel
    from rose.executor.listener import Listener
    from rose.executor.messages import Hello
    from rose.executor.tenancy import Tenancy

_EXIT_LOOKS: Final = 100
_EXIT_LOOK_S: Final = 0.01


class CoServing(Closing):
    """Owns the memory, the gate and the certificates of one device.

    Its life: `open` → `serving` → `rollout` → … → `close`. Made once per device; the lanes are for
    any thread. When anything inside rose fails, the device gives everything back (`gave_back` says
    why) and serving goes on alone. From `serving` on, reports find the books in `arbiter`, the
    memory policy in `lender`, and the `gate`.
    """

    def __init__(self, opened: Opened) -> None:
        """Use `open`."""
        self._opened = opened
        self._parts: Parts | None = None
        self._rollout: RolloutLane | None = None
        self._listener: Listener | None = None
        self._is_closed = False
        self.safety = Safety(self._give_back)
        # Which gate stops the borrower on a GPU, and why; None on a CPU.
        self.gate_choice: GateChoice | None = None

    @classmethod
    def open(
        cls,
        device: str,
        *,
        pool_bytes: int,
        slab_bytes: int | None = None,
        log_path: str | Path = "",
        latency_path: str | Path | None = None,
        isolation: Isolation = "shared",
        policy: Policy | None = None,
        clock: Clock | None = None,
    ) -> "CoServing":
        """Open a device for co-serving.

        Args:
            device: "cpu", "cuda" or "cuda:<n>".
            pool_bytes: KV memory of both tenants together.
            slab_bytes: the unit of ownership; by default the smallest that suits serving's
                geometry. Use `choose_slab_bytes` when the borrower's is known too.
            log_path: file of the certificates; "" keeps only counts.
            latency_path: file of what was learned about serving's steps: read when serving is
                added, if it is there, and written by `close`.
            isolation: what a borrower of another process can reach. "shared": the whole pool, from
                its first loan to its end. "mapped": its own header slab, and each slab from when it
                is lent, zeros by then, until it has unmapped it after it went back. What it was
                never lent it has no way to; what it was lent once, only its own code lets go of.
                Taking back costs serving the same in both.
            policy: the knobs.
            clock: where time comes from, for the C++ core too; waits run on real time.

        Raises:
            InvalidArgument: an unknown device or isolation, or a pool without room for one slab.
            Unavailable: a GPU without a driver that rose can use.
        """
        ordinal = device_ordinal(device)
        if pool_bytes <= 0:
            raise InvalidArgument(f"a pool of {pool_bytes} bytes is empty: raise pool_bytes")
        if isolation not in ISOLATIONS:
            raise InvalidArgument(
                f"an isolation of '{isolation}' is none: use '{ISOLATIONS[0]}' or '{ISOLATIONS[1]}'"
            )
        return cls(
            Opened(
                gpu=None if ordinal is None else Gpu.open(ordinal),
                pool_bytes=pool_bytes,
                slab_bytes=slab_bytes,
                log_path=str(log_path),
                latency_path=None if latency_path is None else Path(latency_path),
                isolation=isolation,
                policy=policy or Policy(),
                clock=clock or BootClock(),
            )
        )

    # ---- tenants --------------------------------------------------------------------------------

    def serving(
        self,
        geometry: KVGeometry,
        *,
        slo: SLO,
        reserve_bytes: int | None = None,
        step_tokens: int = 8192,
        request_tokens: int = 32768,
        cost: ModelCost | None = None,
    ) -> ServingLane:
        """Add the serving engine; lays the pool out.

        Args:
            geometry: of its KV.
            slo: its targets.
            reserve_bytes: what it can always have, whatever the borrower does, rounded up to slabs.
                None: what it could need within T while idle, by the priors. Certificates keep what
                it could need by what was measured since, whatever the reserve, also 0: as free
                blocks or unowned slabs, besides what is in use.
            step_tokens: most tokens of one engine step.
            request_tokens: longest prompt it accepts.
            cost: of a step of its model (`rose.executor.model_cost`): with the device's name it
                gives the first estimates. None: those of `Policy.latency_prior_ms`.

        Raises:
            InvalidArgument: called twice, or a pool or a reserve that does not fit.
            CorruptData: the file of `latency_path` is not one of rose's.
        """
        if self._is_closed:
            raise InvalidArgument("this device is closed: open another")
        if self._parts is not None:
            raise InvalidArgument("this device has a serving engine already: open one per device")
        parts = build(
            self._opened,
            geometry,
            slo=slo,
            reserve_bytes=reserve_bytes,
            limits=ServingLimits(step_tokens=step_tokens, request_tokens=request_tokens),
            cost=cost,
            safety=self.safety,
            tend=self._tend,
        )
        self.lender, self.arbiter, self.gate = parts.lender, parts.lender.arbiter, parts.lender.gate
        self._parts = parts
        return parts.serving

    def rollout(
        self,
        geometry: KVGeometry | Sequence[KVGeometry],
        *,
        limit_bytes: int,
        on_revoke: OnRevoke | None = None,
    ) -> RolloutLane:
        """Add the borrower; from now on the device lends.

        Args:
            geometry: of its KV; several are those of its model's attention groups, which share the
                slabs it borrows.
            limit_bytes: the most it may borrow, rounded down to slabs.
            on_revoke: frees blocks when serving wants slabs; engines set it themselves.

        Raises:
            InvalidArgument: before `serving`, called twice, a geometry that wastes too much, or a
                device with isolation "mapped", whose borrower is of another process.
            Unavailable: rose has failed on this device and given everything back, or the gate's
                self-test cannot be run on this GPU.
        """
        parts = self._check_borrower()
        if self._opened.isolation == "mapped":
            # It could reach serving's own mapping; and its first fault would end serving as well.
            raise InvalidArgument(
                "isolation='mapped' is for a borrower of another process, and this one would be in "
                "serving's: listen, and attach from there, or open the device with 'shared'"
            )
        groups = groups_of(geometry)
        for one in groups:
            self._check_geometry(one)
        gpu = self._opened.gpu
        gate, self.gate_choice = tested_gate(gpu, self.gate, window=GATE_WINDOW)
        limit_slabs = min(limit_bytes // self.arbiter.slab_bytes, self.arbiter.slab_count)
        partition = self.arbiter.add_partition("rollout", reserve_slabs=0, limit_slabs=limit_slabs)
        lane = RolloutLane(
            groups=KVGroups(self.arbiter, partition, groups, header_index=BORROWER),
            gate=gate,
            loans=self.lender,
            reporting=Reporting(self.safety),
            on_revoke=on_revoke,
            why_refused=partial(_why_refused, parts),
            slabs_max=min(limit_slabs, self.lender.lendable_slabs),
            gpu=gpu,
            has_gates=self._opened.policy.has_gates,
        )
        self._rollout = lane
        self.lender.lend_to(LocalBorrower(lane, self.arbiter, self.gate, gpu, self._opened.policy))
        self._begin_lending(parts)
        return lane

    def listen(self, path: str | Path) -> "Listener":
        """Let a borrower of another process attach at a Unix socket; from now on the device lends.

        One at a time; when it is gone, another one may come. It calls `CoServing.attach`.

        Args:
            path: of the socket, which only this user can reach.

        Raises:
            InvalidArgument: before `serving`, called twice, or after `rollout`.
            Unavailable: no socket can be made there, or rose has failed on this device.
        """
        from rose.executor.listener import Listener  # noqa: PLC0415 (an extra)

        parts = self._check_borrower()
        self._listener = Listener(
            path,
            admit=self._admit,
            why_refused=lambda: _why_refused(parts).name,
            show=partial(self._show, parts),
            on_failure=self.safety.report,
        )
        self._begin_lending(parts)
        return self._listener

    @staticmethod
    def attach(path: str | Path) -> "AttachedDevice":
        """Reach a device that serves in another process, which called `listen`.

        Raises:
            Unavailable: nobody listens at `path`.
        """
        from rose.executor.attached import AttachedDevice  # noqa: PLC0415 (an extra)

        return AttachedDevice.connect(path)

    def _admit(self, hello: "Hello", process: "Process") -> "Tenancy":
        """Make a borrower of another process a tenant, or raise why not."""
        from rose.executor.tenancy import Tenancy  # noqa: PLC0415 (an extra)

        self._check_geometry(hello.geometry)
        self._check_lends()
        gpu = self._opened.gpu
        tenancy = Tenancy(
            hello,
            process,
            lender=self.lender,
            header_index=BORROWER,
            isolation=self._opened.isolation,
            device="cpu" if gpu is None else f"cuda:{gpu.device.ordinal}",
        )
        self.lender.lend_to(tenancy)
        return tenancy

    def _show(self, parts: Parts, channel: "Channel") -> None:
        """Send the ledger, and what whoever looks at it cannot read there."""
        from rose.executor.messages import Ledger  # noqa: PLC0415 (an extra)

        said = read_refusals(parts.creditor)
        binding, cap = said["binding"], self.lender.cap.left()
        answer = Ledger(
            os.getpid(),
            cap=None if cap is None else (cap[0] * self.arbiter.slab_bytes, cap[1]),
            refusals=dict(said["refusals"]),
            binding=None if binding is None else binding.sentence,
        )
        ledger = self.arbiter.share_ledger()
        try:
            channel.send(answer, [ledger])
        finally:
            os.close(ledger)

    def _check_borrower(self) -> Parts:
        """Raise why there can be no borrower; the parts of the device otherwise."""
        if self._is_closed:
            raise InvalidArgument("this device is closed: open another")
        parts = self._has_serving("the borrower")
        if self._rollout is not None or self._listener is not None:
            raise InvalidArgument("this device has a borrower already: one per device")
        self._check_lends()
        return parts

    def _has_serving(self, what: str) -> Parts:
        """Return the parts of the device; raise when serving was not added before `what`."""
        if self._parts is None:
            raise InvalidArgument(f"add the serving engine before {what}")
        return self._parts

    def _check_lends(self) -> None:
        if self.safety.cause is not None:
            raise Unavailable(f"this device lends no more: {self.gave_back}")

    def _check_geometry(self, geometry: KVGeometry) -> None:
        """Raise when the device's slabs do not suit a borrower's geometry."""
        slab_bytes = self.arbiter.slab_bytes
        suited = choose_slab_bytes(self.lender.kv.geometry, geometry)
        if slab_bytes % suited and geometry.waste(slab_bytes) > WASTE_MAX:
            raise InvalidArgument(
                f"slabs of {slab_bytes / MIB:g} MiB waste {geometry.waste(slab_bytes):.0%} of the "
                f"borrower's memory: open the device with slab_bytes={suited}"
            )

    def _begin_lending(self, parts: Parts) -> None:
        """Start who grants credit and who minds deadlines."""
        parts.serving.lend_by(parts.creditor)
        self.lender.state.beat()
        parts.creditor.start()
        parts.keeper.start()
        # A daemon thread that lends when the interpreter ends could never take it up again.
        atexit.register(self._end_lending_at_exit, parts.creditor)

    def _end_lending_at_exit(self, creditor: Creditor) -> None:
        creditor.stop()
        self.gate.shut_down()
        # In a fraction of a second it has looked at the gate; longer nobody is waited for.
        for _ in range(_EXIT_LOOKS):
            if not creditor.is_lending:
                return
            threading.Event().wait(_EXIT_LOOK_S)

    # ---- how much is lent -----------------------------------------------------------------------

    def lend_at_most(self, size_bytes: int, *, ttl_ms: float) -> None:
        """Cap what is on loan for `ttl_ms` from now; after that nothing is lent.

        Without a first call there is no cap. From then on whoever decides renews it in time, or all
        that is lent goes back, and nothing is lent until the next call. Growth over the cap is
        refused (`Reason.OVER_LIMIT`). What is on loan over it is taken back as ever, by a deadline:
        the keeper begins at once, so this waits for nobody. Certificates and the borrower's limit
        hold besides. Any thread; on a device that lends no more it changes nothing.

        Args:
            size_bytes: of the pool, rounded down to slabs, at least 0.
            ttl_ms: at least 0; infinite for as long as the device is open.

        Raises:
            InvalidArgument: before `serving`, or a value out of its range.
        """
        self._has_serving("a cap on what the device lends")
        if not (size_bytes >= 0 and ttl_ms >= 0):
            raise InvalidArgument(
                f"a cap of {size_bytes} bytes for {ttl_ms} ms: neither may be below 0"
            )
        with self.safety:
            self.lender.lend_at_most(
                size_bytes // self.arbiter.slab_bytes, ttl_ns=ttl_ms * NS_PER_MS
            )

    def reading(self) -> DeviceReading:
        """Say how serving is and what is lent, now. Any thread; serving is not held up.

        Raises:
            InvalidArgument: before `serving`, or after `close`.
            Unavailable: rose has failed on this device and given everything back.
        """
        if self._is_closed:
            raise InvalidArgument("this device is closed: open another")
        parts = self._has_serving("a reading of how it is")
        self._check_lends()
        arbiter, lender, state = self.arbiter, self.lender, self.lender.state
        serving = arbiter.snapshot().partitions[SERVING]
        blocks = arbiter.slab_count * lender.kv.blocks_per_slab
        revocations, ebbs = lender.collector.pressures
        return DeviceReading(
            pool_bytes=arbiter.slab_count * arbiter.slab_bytes,
            reserve_bytes=serving.reserve_slabs * arbiter.slab_bytes,
            slab_bytes=arbiter.slab_bytes,
            slo=parts.slo,
            used_share=serving.used_blocks / blocks,
            running=state.running,
            waiting=state.waiting,
            first_tokens=tuple(state.first_tokens),
            later_tokens=tuple(state.later_tokens),
            lent_bytes=lender.lent_slabs * arbiter.slab_bytes,
            cap_bytes=lender.cap.slabs * arbiter.slab_bytes,
            revocations=revocations,
            ebbs=tuple(
                (before * arbiter.slab_bytes, left * arbiter.slab_bytes) for before, left in ebbs
            ),
            evidence=parts.serving.evidence(),
            **read_refusals(parts.creditor),
        )

    # ---- the device itself ----------------------------------------------------------------------

    def _tend(self) -> None:
        with self.safety:
            self.lender.state.beat()
            self.lender.tend()

    @property
    def gave_back(self) -> str | None:
        """Why the device stopped lending; None while all is well."""
        cause = self.safety.cause
        return None if cause is None else f"{type(cause).__name__}: {cause}"

    def _give_back(self, cause: BaseException) -> None:
        """Stop launches, wait with a deadline, then reclaim; the mapping stays in place."""
        self.lender.log.append_gave_back(f"{type(cause).__name__}: {cause}")
        self._stop_lending()

    def _stop_lending(self) -> None:
        parts = self._parts
        if parts is None or (self._rollout is None and self._listener is None):
            return
        # From the last line up, and each even if one before it failed. First comes who could open
        # the gate again.
        with ExitStack() as steps:
            steps.callback(self.gate.shut_down)
            steps.callback(self.lender.close)
            steps.callback(self.gate.wait_parked, timeout_ms=self._opened.policy.park_wait_ms)
            steps.callback(self.gate.close, CloseReason.GAVE_BACK)
            steps.callback(parts.creditor.stop)
            steps.callback(parts.serving.lend_by, None)

    def close(self) -> None:
        """Stop lending, take everything back, and write the certificates out. Idempotent.

        Stop the engines first; views of the pool stay valid as long as someone holds them. When the
        last certificates cannot be written, `gave_back` says so, and what was learned about steps
        is saved all the same.
        """
        if self._is_closed:
            return
        self._is_closed = True
        parts = self._parts
        if parts is None:
            return
        atexit.unregister(self._end_lending_at_exit)
        parts.keeper.stop()
        if self.safety.cause is None:
            self._stop_lending()
        if self._listener is not None:
            self._listener.close()
        try:
            self.lender.log.close()
        except RoseError as error:
            self.safety.report(error)
        if self._opened.latency_path is not None:
            save_latency_model(parts.model, self._opened.latency_path, identity=parts.identity)


def _why_refused(parts: Parts) -> Reason:
    return REASONS.get(parts.creditor.last_refusal, Reason.SERVING_BUSY)
