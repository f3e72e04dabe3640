"""`CoServing`: one device that serving shares with a borrower."""

import atexit
import os
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rose._core import Attachment, BootClock, Clock, CloseReason, GateChoice, HostGate, Process
from rose.closing import Closing, Once
from rose.compute import Gpu, device_ordinal, tested_gate
from rose.errors import InvalidArgument, RoseError, Unavailable
from rose.events import Reason, Refusal
from rose.executor.limit_file import read_limit, write_limit
from rose.executor.loans import BEATS, Loans
from rose.executor.notices import Notices
from rose.executor.reading import DeviceReading
from rose.executor.refusals import REASONS, read_refusals, read_segment_limit
from rose.executor.revocation import OnRevoke
from rose.executor.rollout import RolloutLane
from rose.executor.safety import Reporting, Safety
from rose.executor.serving import ServingLane, ServingLimits
from rose.executor.tenancy import Tenancy
from rose.executor.wiring import BORROWER, SERVING, Opened, Parts, build
from rose.memory import (
    Isolation,
    KVGeometry,
    KVSpace,
    check_isolation,
    choose_slab_bytes,
)
from rose.memory.geometry import WASTE_MAX
from rose.slo import SLO, Policy
from rose.slo.latency_file import save_latency_model
from rose.slo.policy import GATE_WINDOW
from rose.slo.prior import ModelCost
from rose.units import MIB, NS_PER_MS

if TYPE_CHECKING:  # These modules need an extra of the package.
    from rose.executor.attached import AttachedDevice
    from rose.executor.channel import Channel
    from rose.executor.listener import Listener
    from rose.executor.messages import Hello


class CoServing(Closing):
    """Owns the memory, the gate and the certificates of one device.

    Lifecycle: `open` → `serving` → `rollout` → … → `close`. Open each device once; any thread may
    use the lanes. If anything inside rose fails, serving gets all memory and compute back and
    continues alone; `gave_back` then has the reason. After `serving`, reports may read `arbiter`
    (owners of slabs), `lender` (the memory policy) and `gate`.
    """

    def __init__(self, opened: Opened) -> None:
        """Made by `open`."""
        self._opened = opened
        self._parts: Parts | None = None
        self._rollout: RolloutLane | None = None
        self._listener: Listener | None = None
        self._borrowing = ExitStack()  # Ends the tenancy of a borrower in this process.
        self._once = Once()
        self.safety = Safety(self._give_back)
        # Kind of the borrower's gate on a GPU, and why it was chosen; None on a CPU.
        self.gate_choice: GateChoice | None = None

    @property
    def device_id(self) -> str:
        """The name "cpu", or the UUID of the GPU, whose ordinal may differ between processes."""
        gpu = self._opened.gpu
        return "cpu" if gpu is None else gpu.device.facts.uuid

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
            slab_bytes: size of a slab, the unit of ownership. None: the smallest size that suits
                serving's geometry. Use `choose_slab_bytes` if the borrower's geometry is known too.
            log_path: path of the certificate log; "": no file is written, only counts are kept.
            latency_path: file of the learned step times. `serving` reads the file if it exists, and
                `close` writes it.
            isolation: memory that a borrower in another process can access. "shared": the whole
                pool, until the borrower's process ends. "mapped": the borrower's header slab, and
                slabs lent to it, which are zeroed first. After a slab's return the borrower's own
                process must unmap the slab. A slab that was never lent cannot be accessed. In both
                modes a revocation takes equally long for serving.
            policy: limits and evidence rules for lending; None: the defaults.
            clock: time source of Python and the C++ core; None: the system's clock. Waits use real
                time.

        Raises:
            InvalidArgument: the device or the isolation is unknown, or the pool is empty.
            Unavailable: the GPU has no driver that rose can use.
        """
        ordinal = device_ordinal(device)
        if pool_bytes <= 0:
            raise InvalidArgument(f"pool_bytes must be above 0, got {pool_bytes}")
        check_isolation(isolation)
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
        """Add the serving engine, and lay out the pool.

        Args:
            geometry: KV layout of serving's model.
            slo: latency targets of serving's requests.
            reserve_bytes: memory that is never lent, rounded up to slabs. None: the demand D(T) of
                an idle engine, estimated before any measurement. With any reserve, even 0,
                certificates also keep the measured demand available as free blocks or unowned
                slabs.
            step_tokens: largest number of tokens in one engine step.
            request_tokens: largest number of tokens in one prompt.
            cost: work of a step of the model (`rose.executor.model_cost`). The first latency
                estimates are computed from it; with None they are `Policy.latency_prior_ms`.

        Raises:
            InvalidArgument: called twice or after `close`, the pool is too small or has too many
                slabs, or the reserve is larger than the pool.
            CorruptData: the file at `latency_path` was not written by rose.
        """
        if self._once.has_begun:
            raise InvalidArgument("this device is closed: open another")
        if self._parts is not None:
            raise InvalidArgument(
                "this device already has a serving engine: open another device for a second"
            )
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
        geometry: KVGeometry,
        *,
        limit_bytes: int,
        on_revoke: OnRevoke | None = None,
        serving_streams: Sequence[int] = (),
    ) -> RolloutLane:
        """Add the borrower; lending starts.

        Args:
            geometry: KV layout of the borrower's model.
            limit_bytes: largest size of the memory on loan, rounded down to slabs.
            on_revoke: function that frees blocks when serving needs slabs; the engines of this
                package set it themselves.
            serving_streams: handles of the CUDA streams that serving uses besides the stream of its
                lane, such as streams for copies or collectives. The borrower's gate must not delay
                these streams. While a request is live and serving's streams are idle, rose assumes
                that serving waits for the device (`ServingLane.undeclared_waits`).

        Raises:
            InvalidArgument: called before `serving` or twice, the geometry wastes too much of a
                slab, or isolation is "mapped", which needs a borrower in another process.
            Unavailable: rose has failed on this device and given everything back, or the gate's
                self-test cannot run on this GPU.
        """
        parts = self._check_borrower()
        if self._opened.isolation == "mapped":
            # A borrower in this process could access serving's mapping, and a fault of the borrower
            # would end serving too.
            raise InvalidArgument(
                "isolation='mapped' needs a borrower in another process: call listen here and "
                "attach there, or open the device with isolation='shared'"
            )
        self._check_geometry(geometry)
        gpu = self._opened.gpu
        gate, self.gate_choice = tested_gate(
            gpu, self.gate, window=GATE_WINDOW, streams=serving_streams
        )
        parts.serving.watch(serving_streams)
        tenancy = self._tenancy(parts, geometry, limit_bytes, Process.open(os.getpid()))
        self._borrowing.callback(tenancy.let_go)
        attachment = Attachment.create_here(self.arbiter, tenancy.partition)
        self._borrowing.callback(attachment.close)
        clock = self._opened.clock
        lane = RolloutLane(
            # Borrower and serving use the same mapping of the pool.
            kv=KVSpace(
                attachment,
                tenancy.partition,
                geometry,
                header_index=tenancy.header_index,
                window=self.arbiter,
            ),
            gate=gate,
            loans=Loans(attachment, tenancy, self.gate, window=None, clock=clock),
            reporting=Reporting(self.safety),
            on_revoke=on_revoke,
            slabs_max=tenancy.slabs_max,
            gpu=gpu,
            has_gates=self._opened.policy.has_gates,
        )
        attachment.attend(every_ms=self._opened.policy.lease_ttl_ms / BEATS)
        tenancy.ring = Notices(attachment, lane, clock=clock).ring
        tenancy.is_idle = partial(_is_idle, gpu, self.gate)
        self._rollout = lane
        self.lender.lend_to(tenancy)
        self._begin_lending(parts)
        return lane

    def _tenancy(
        self, parts: Parts, geometry: KVGeometry, limit_bytes: int, process: Process
    ) -> Tenancy:
        return Tenancy(
            geometry,
            limit_bytes,
            process,
            lender=self.lender,
            header_index=BORROWER,
            isolation=self._opened.isolation,
            why_refused=partial(_why_refused, parts),
        )

    def listen(self, path: str | Path) -> "Listener":
        """Let a borrower in another process attach at a Unix socket; lending starts.

        The borrower calls `CoServing.attach`. Only one borrower can be attached at a time. At the
        same socket an operator may limit the loans (`rose lending`). The limit is kept in a file
        beside the socket, so it remains in force after a restart.

        Args:
            path: path of the socket to create; only the same user can connect.

        Raises:
            InvalidArgument: called before `serving`, twice, or after `rollout`.
            Unavailable: the socket cannot be created, the file of the limit cannot be read, or rose
                has failed on this device.
            CorruptData: the file of the limit was not written by rose.
        """
        parts = self._check_borrower()
        try:
            from rose.executor.channel import check_path  # noqa: PLC0415 (an extra)
            from rose.executor.listener import Listener  # noqa: PLC0415 (an extra)
            from rose.executor.welcome import welcome  # noqa: PLC0415 (an extra)

            limit_path = Path(f"{check_path(path)}.limit")
            share = read_limit(limit_path)
            self.lender.limit(int(share * self.arbiter.slab_count))
            self._listener = Listener(
                path,
                admit=partial(self._admit, parts),
                welcome=partial(welcome, lender=self.lender, device=self.device_id),
                show=partial(self._show, parts),
                limit=partial(self._limit, limit_path),
                on_failure=self.safety.report,
            )
        except BlockingIOError as error:
            raise Unavailable(f"cannot listen at {path}: already in use") from error
        except OSError as error:
            place = "" if error.filename is None else f"{error.filename}: "
            raise Unavailable(f"cannot listen at {path}: {place}{error.strerror}") from error
        self._begin_lending(parts)
        return self._listener

    @staticmethod
    def attach(path: str | Path) -> "AttachedDevice":
        """Connect to a device in another process that called `listen`.

        Raises:
            Unavailable: no device listens at `path`.
        """
        from rose.executor.attached import AttachedDevice  # noqa: PLC0415 (an extra)

        return AttachedDevice.connect(path)

    def _admit(self, parts: Parts, hello: "Hello", process: Process) -> Tenancy:
        """Make a borrower in another process a tenant; raise an error if it must be rejected."""
        self._check_geometry(hello.geometry)
        self._check_lends()
        barred = self.lender.readmission.barred
        if barred is not None:
            raise barred
        if self._opened.gpu is not None:
            self._opened.gpu.check_other_process()
        tenancy = self._tenancy(parts, hello.geometry, hello.limit_bytes, process)
        self.lender.lend_to(tenancy)
        return tenancy

    def _limit(self, path: Path, share: float) -> None:
        """Limit the loans to a share of the pool, and keep the limit in its file."""
        with self.safety:
            self.lender.limit(int(share * self.arbiter.slab_count))
        write_limit(path, share)

    def _show(self, parts: Parts, channel: "Channel") -> None:
        """Send the ledger, the cap and the refusals to an observer."""
        from rose.executor.messages import Ledger  # noqa: PLC0415 (an extra)

        found = read_refusals(parts.creditor)
        binding, cap = found["binding"], self.lender.cap.left()
        barred, segment = self.lender.readmission.barred, _why_refused(parts).segment
        answer = Ledger(
            os.getpid(),
            self.device_id,
            cap=None if cap is None else (cap[0] * self.arbiter.slab_bytes, cap[1]),
            refusals=dict(found["refusals"]),
            binding=None if binding is None else binding.sentence,
            kills=tuple(self.lender.kills),
            waited_ms=self.lender.log.waited_ms,
            wait_budget_ms=self._opened.policy.wait_budget_ms,
            segment=None if segment is None else segment.lengths,
            barred=None if barred is None else str(barred),
        )
        ledger = self.arbiter.share_ledger()
        try:
            channel.send(answer, [ledger])
        finally:
            os.close(ledger)

    def _check_borrower(self) -> Parts:
        """Return the parts of the device; raise if it cannot have a borrower."""
        if self._once.has_begun:
            raise InvalidArgument("this device is closed: open another")
        parts = self._has_serving("the borrower")
        if self._rollout is not None or self._listener is not None:
            raise InvalidArgument(
                "a device can have one borrower, and this device has one or listens for one"
            )
        self._check_lends()
        return parts

    def _has_serving(self, what: str) -> Parts:
        """Return the parts of the device; raise if serving was not added before `what`."""
        if self._parts is None:
            raise InvalidArgument(f"add the serving engine before {what}")
        return self._parts

    def _check_lends(self) -> None:
        if self.safety.cause is not None:
            raise Unavailable(f"this device has stopped lending: {self.gave_back}")

    def _check_geometry(self, geometry: KVGeometry) -> None:
        """Raise if the borrower's geometry wastes too much of a slab."""
        slab_bytes = self.arbiter.slab_bytes
        suited = choose_slab_bytes(self.lender.kv.geometry, geometry)
        if slab_bytes % suited and geometry.waste(slab_bytes) > WASTE_MAX:
            raise InvalidArgument(
                f"slabs of {slab_bytes / MIB:g} MiB waste {geometry.waste(slab_bytes):.0%} of the "
                f"borrower's memory: open the device with slab_bytes={suited}"
            )

    def _begin_lending(self, parts: Parts) -> None:
        """Start the creditor and the keeper."""
        parts.serving.lend_by(parts.creditor)
        self.lender.state.beat()
        parts.creditor.start()
        parts.keeper.start()
        # Without the interpreter nobody revokes a loan, so a program that does not close the device
        # ends lending before its interpreter ends.
        atexit.register(self._end_lending_at_exit)

    def _end_lending_at_exit(self) -> None:
        if self._parts is not None and not self.safety.is_forked:
            self._parts.creditor.stop()
            self.gate.shut_down()

    # ---- cap and reading ------------------------------------------------------------------------

    def lend_at_most(self, size_bytes: int, *, ttl_ms: float) -> None:
        """Cap the memory on loan for `ttl_ms` from now; after that nothing is lent.

        Before the first call there is no cap. Afterwards the caller must renew the cap in time:
        when it expires, all loans are taken back. Growth above the cap is refused
        (`Reason.OVER_LIMIT`). This call does not wait: the keeper takes back loans above the cap by
        the usual deadline. Certificates and the borrower's limit still apply. Any thread may call
        this. It has no effect after the device has stopped lending.

        Args:
            size_bytes: largest size of the memory on loan, rounded down to slabs, >= 0.
            ttl_ms: lifetime of the cap in milliseconds, >= 0; infinity: until the device closes.

        Raises:
            InvalidArgument: called before `serving`, or a value is out of range.
        """
        self._has_serving("the cap")
        if not (size_bytes >= 0 and ttl_ms >= 0):
            raise InvalidArgument(
                f"size_bytes and ttl_ms must be at least 0, got {size_bytes} and {ttl_ms}"
            )
        with self.safety:
            self.lender.lend_at_most(
                size_bytes // self.arbiter.slab_bytes, ttl_ns=ttl_ms * NS_PER_MS
            )

    def reading(self) -> DeviceReading:
        """Return serving's present load and loans, without delaying serving. For any thread.

        Raises:
            InvalidArgument: called before `serving` or after `close`.
            Unavailable: rose has failed on this device and given everything back.
        """
        if self._once.has_begun:
            raise InvalidArgument("this device is closed: open another")
        parts = self._has_serving("the first reading")
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
            revoked=lender.collector.begun,
            delay_ms=parts.creditor.segment_upper_ms + lender.policy.signal_ms,
            ebbs=tuple(
                (before * arbiter.slab_bytes, left * arbiter.slab_bytes) for before, left in ebbs
            ),
            evidence=parts.serving.evidence(),
            kills=tuple(lender.kills),
            waited_ms=lender.log.waited_ms,
            wait_budget_ms=lender.policy.wait_budget_ms,
            segment=_why_refused(parts).segment,
            barred=None if (barred := lender.readmission.barred) is None else str(barred),
            **read_refusals(parts.creditor),
        )

    # ---- failure and end ------------------------------------------------------------------------

    def _tend(self) -> None:
        with self.safety:
            self.lender.state.beat()
            self.lender.tend()

    @property
    def gave_back(self) -> str | None:
        """Reason why the device stopped lending; None while it lends."""
        cause = self.safety.cause
        return None if cause is None else f"{type(cause).__name__}: {cause}"

    def _give_back(self, cause: BaseException) -> None:
        """Stop the borrower, wait with a deadline, and reclaim all slabs; mappings stay."""
        self.lender.log.append_gave_back(f"{type(cause).__name__}: {cause}")
        self._stop_lending()

    def _stop_lending(self) -> None:
        parts = self._parts
        if parts is None or (self._rollout is None and self._listener is None):
            return
        # The stack runs these calls from the last to the first, and goes on if a call fails. The
        # creditor is stopped before the gate is closed, because it could open the gate again.
        with ExitStack() as steps:
            steps.callback(self.gate.shut_down)
            steps.callback(self.lender.close)
            steps.callback(self._wait_parked, parts)
            steps.callback(self.gate.close, CloseReason.GAVE_BACK)
            steps.callback(parts.creditor.stop)
            steps.callback(parts.serving.lend_by, None)

    def _wait_parked(self, parts: Parts) -> None:
        """Wait for the last segment, as a serving step does."""
        if self.lender.newest is not None and self.gate.is_running():
            parts.creditor.wait_parked(borrower=self.lender.newest.partition)

    def close(self) -> None:
        """Stop lending, take all loans back, and flush the certificate log. Idempotent.

        Stop the engines first. Views of the pool stay valid as long as they are referenced. If the
        last certificates cannot be written, `gave_back` has the error; the learned step times are
        saved anyway.
        """
        self._once(self._close)

    def _close(self) -> None:
        parts = self._parts
        if parts is None:
            return
        atexit.unregister(self._end_lending_at_exit)
        parts.keeper.stop()
        if self.safety.cause is None:
            self._stop_lending()
        if self._listener is not None:
            self._listener.close()
        self._borrowing.close()
        try:
            self.lender.log.close()
        except RoseError as error:
            self.safety.report(error)
        if self._opened.latency_path is not None:
            save_latency_model(parts.model, self._opened.latency_path, identity=parts.identity)


def _why_refused(parts: Parts) -> Refusal:
    """Return the newest refusal of a quantum."""
    reason = REASONS.get(parts.creditor.last_refusal, Reason.SERVING_BUSY)
    segment = read_segment_limit(parts.creditor) if reason is Reason.SEGMENT_TOO_LONG else None
    return Refusal(reason, segment=segment)


def _is_idle(gpu: Gpu | None, gate: HostGate) -> bool:
    """Return True if no step of a borrower in this process runs, on the host and on the GPU."""
    return (gpu is None or gpu.rollout.is_idle()) and not gate.is_in_step()
