"""`CoServing`: one device that serving shares with a borrower."""

import atexit
import os
import resource
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rose._core import (
    Arbiter,
    BootClock,
    Clock,
    CloseReason,
    Creditor,
    GateChoice,
    HostGate,
    LatencyModel,
    MoveLog,
    ServingState,
    Watchdog,
)
from rose.closing import Closing
from rose.compute import Gpu, device_ordinal, tested_gate
from rose.errors import InvalidArgument, RoseError, Unavailable, check
from rose.events import Reason
from rose.executor.certified import certificate_log, certified_creditor
from rose.executor.demand import Demand, ServingLimits
from rose.executor.keeper import Keeper
from rose.executor.lender import Borrower, Lender, OnRevoke
from rose.executor.reading import DeviceReading
from rose.executor.refusals import REASONS, read_refusals
from rose.executor.rollout import RolloutLane
from rose.executor.safety import Reporting, Safety
from rose.executor.serving import ServingLane
from rose.memory import (
    ISOLATIONS,
    Isolation,
    KVGeometry,
    KVGroups,
    KVSpace,
    choose_slab_bytes,
    groups_of,
)
from rose.memory.geometry import WASTE_MAX
from rose.slo import SLO, Policy
from rose.slo.latency_file import load_latency_model, new_latency_model, save_latency_model
from rose.slo.policy import GATE_WINDOW, WATCHDOG_MS
from rose.slo.prior import ModelCost, prior_ms
from rose.units import GIB, MIB, NS_PER_MS, ceil_div

if TYPE_CHECKING:  # Messages between processes need an extra of this package.
    from rose._core import Process
    from rose.executor.attached import AttachedDevice
    from rose.executor.channel import Channel
    from rose.executor.listener import Listener
    from rose.executor.messages import Hello
    from rose.executor.tenancy import Tenancy

_EXIT_LOOKS: Final = 100
_EXIT_LOOK_S: Final = 0.01
_SERVING: Final = 0
_BORROWER: Final = 1  # its header slab
_SLABS_MAX: Final = (1 << 31) - 1  # The core counts them in 32 bits.
_TENANTS: Final = 2
_OTHER_DESCRIPTORS: Final = 64  # sockets, bells and files that serving has besides its memory


class CoServing(Closing):
    """Owns the memory, the gate and the certificates of one device.

    Its life: `open` → `serving` → `rollout` → … → `close`. Made once per device; the lanes are for
    any thread. When anything inside rose fails, the device gives everything back (`gave_back` says
    why) and serving goes on alone. From `serving` on, reports find the books in `arbiter`, the
    memory policy in `lender`, and the `gate`.
    """

    def __init__(
        self,
        *,
        gpu: Gpu | None,
        pool_bytes: int,
        slab_bytes: int | None,
        log_path: str,
        latency_path: Path | None,
        isolation: Isolation,
        policy: Policy,
        clock: Clock,
    ) -> None:
        """Use `open`."""
        self._gpu = gpu
        self._pool_bytes = pool_bytes
        self._slab_bytes = slab_bytes
        self._log_path = log_path
        self._latency_path = latency_path
        self._isolation = isolation
        self._policy = policy
        self._clock = clock
        self._serving: ServingLane | None = None
        self._rollout: RolloutLane | None = None
        self._listener: Listener | None = None
        self._creditor: Creditor | None = None
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
        policy = policy or Policy()
        return cls(
            gpu=None if ordinal is None else Gpu.open(ordinal),
            pool_bytes=pool_bytes,
            slab_bytes=slab_bytes,
            log_path=str(log_path),
            latency_path=None if latency_path is None else Path(latency_path),
            isolation=isolation,
            policy=policy,
            clock=clock or BootClock(),
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
        if self._serving is not None:
            raise InvalidArgument("this device has a serving engine already: open one per device")
        policy = self._policy
        slab_bytes = self._slab_bytes or choose_slab_bytes(geometry)
        slabs = self._pool_bytes // slab_bytes - _TENANTS
        if slabs < 1:
            raise InvalidArgument(
                f"a pool of {self._pool_bytes // MIB} MiB has no room for {_TENANTS} headers and a "
                f"slab of {slab_bytes / MIB:g} MiB: raise pool_bytes"
            )
        if slabs > _SLABS_MAX:
            raise InvalidArgument(
                f"a pool of {self._pool_bytes} bytes has {slabs} slabs, more than the "
                f"{_SLABS_MAX} there may be: lower pool_bytes or raise slab_bytes"
            )
        if self._isolation == "mapped" and self._gpu is None:
            _check_descriptors(slabs + _TENANTS)
        limits = ServingLimits(step_tokens=step_tokens, request_tokens=request_tokens)
        model = self._latency_model(geometry, step_tokens, cost)
        demand = Demand(
            geometry=geometry,
            slab_bytes=slab_bytes,
            limits=limits,
            model=model,
            policy=policy,
            clock=self._clock,
        )
        if reserve_bytes is None:
            wanted = ceil_div(demand.blocks(running=0), demand.blocks_per_slab)
            reserve_bytes = min(wanted, slabs) * slab_bytes
        reserve_slabs = ceil_div(reserve_bytes, slab_bytes)
        if not 0 <= reserve_slabs <= slabs:
            raise InvalidArgument(
                f"a reserve of {reserve_bytes} bytes does not fit the {slabs * slab_bytes} bytes "
                f"that a pool of {self._pool_bytes} leaves: lower reserve_bytes or raise pool_bytes"
            )
        needed = geometry.blocks_for(request_tokens)
        if needed > slabs * geometry.blocks_per_slab(slab_bytes):
            raise InvalidArgument(
                f"a request of {request_tokens} tokens needs {needed} blocks, more than a pool of "
                f"{self._pool_bytes} bytes holds: lower request_tokens or raise pool_bytes"
            )
        log = certificate_log(
            self._log_path,
            slo=slo,
            policy=policy,
            clock=self._clock,
            slabs=slabs,
            partitions=_TENANTS,
            blocks_per_slab=geometry.blocks_per_slab(slab_bytes),
            block_tokens=geometry.block_tokens,
            max_request_tokens=request_tokens,
            max_batch_tokens=step_tokens,
            burst_requests=policy.burst_requests,
            revoke_ms=policy.revoke_ms,
        )
        with ExitStack() as undo:
            undo.callback(log.close)
            arbiter = Arbiter.create(
                slab_bytes=slab_bytes,
                slab_count=slabs,
                header_slabs=_TENANTS,
                clock=self._clock,
                observer=MoveLog(log),
                device=self._gpu.device if self._gpu else None,
                object_bytes_max=slab_bytes if self._isolation == "mapped" else GIB,
            )
            partition = arbiter.add_partition(
                "serving", reserve_slabs=reserve_slabs, limit_slabs=slabs
            )
            check(partition == _SERVING, "serving must be the first partition")
            kv = KVSpace(arbiter, partition, geometry, header_index=_SERVING)
            arbiter.take(partition, reserve_slabs)
            self.gate = HostGate(clock=self._clock)
            self._state = ServingState(log, gate=self.gate)
            self._watchdog = Watchdog(self.gate, log=log, after_ms=WATCHDOG_MS, clock=self._clock)
            self._model, self._limits, self._slo = model, limits, slo
            self.lender = Lender(
                arbiter=arbiter,
                serving=partition,
                serving_kv=kv,
                gate=self.gate,
                state=self._state,
                demand=demand,
                log=log,
                policy=policy,
                clock=self._clock,
            )
            self._serving = ServingLane(
                lender=self.lender,
                model=model,
                safety=self.safety,
                watchdog=self._watchdog,
                stream=self._gpu.serving.handle if self._gpu else None,
                limits=limits,
                slowdown=slo.slowdown,
            )
            undo.pop_all()
        self._log, self.arbiter, self._slab_bytes = log, arbiter, slab_bytes
        self._serving_kv = kv
        self._keeper = Keeper(
            self._tend,
            arbiter,
            every_ms=policy.tend_every_ms,
            on_failure=self.safety.report,
        )
        return self._serving

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
        slab_bytes = self._check_borrower()
        if self._isolation == "mapped":
            # It could reach serving's own mapping; and its first fault would end serving as well.
            raise InvalidArgument(
                "isolation='mapped' is for a borrower of another process, and this one would be in "
                "serving's: listen, and attach from there, or open the device with 'shared'"
            )
        groups = groups_of(geometry)
        for one in groups:
            self._check_geometry(one)
        gate, self.gate_choice = tested_gate(self._gpu, self.gate, window=GATE_WINDOW)
        partition = self.arbiter.add_partition(
            "rollout",
            reserve_slabs=0,
            limit_slabs=min(limit_bytes // slab_bytes, self.arbiter.slab_count),
        )
        lane = RolloutLane(
            groups=KVGroups(self.arbiter, partition, groups, header_index=_BORROWER),
            gate=gate,
            loans=self.lender,
            reporting=Reporting(self.safety),
            on_revoke=on_revoke,
            why_refused=self._why_refused,
            gpu=self._gpu,
            has_gates=self._policy.has_gates,
        )
        self._rollout = lane
        self.lender.lend_to(
            Borrower(
                partition=partition,
                geometry=groups[0],
                # The engine sets these two later, so they are looked up at each call.
                on_revoke=lambda revocation: lane.on_revoke(revocation),  # noqa: PLW0108
                on_room=lambda: lane.on_room(),  # noqa: PLW0108
                is_alive=lambda: not self.gate.is_in_step(),
                is_done=self._is_borrower_done,
            )
        )
        self._begin_lending()
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

        self._check_borrower()
        self._listener = Listener(
            path,
            admit=self._admit,
            why_refused=lambda: self._why_refused().name,
            show=self._show,
            on_failure=self.safety.report,
        )
        self._begin_lending()
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
        if self.safety.cause is not None:
            raise Unavailable(f"this device lends no more: {self.gave_back}")
        tenancy = Tenancy(
            hello,
            process,
            lender=self.lender,
            header_index=_BORROWER,
            isolation=self._isolation,
            device="cpu" if self._gpu is None else f"cuda:{self._gpu.device.ordinal}",
        )
        self.lender.lend_to(tenancy.borrower)
        return tenancy

    def _is_borrower_done(self) -> bool:
        return not self.gate.is_in_step() and (self._gpu is None or self._gpu.rollout.is_idle())

    def _show(self, channel: "Channel") -> None:
        """Send the ledger, and what whoever looks at it cannot read there."""
        from rose.executor.messages import Ledger  # noqa: PLC0415 (an extra)

        said = read_refusals(self._creditor)
        binding = said["binding"]
        answer = Ledger(
            os.getpid(),
            cap=self.lender.cap_left(),
            refusals=dict(said["refusals"]),
            binding=None if binding is None else binding.sentence,
        )
        ledger = self.arbiter.share_ledger()
        try:
            channel.send(answer, [ledger])
        finally:
            os.close(ledger)

    def _check_borrower(self) -> int:
        """Raise why there can be no borrower; the bytes of a slab otherwise."""
        if self._is_closed:
            raise InvalidArgument("this device is closed: open another")
        if self._serving is None or self._slab_bytes is None:
            raise InvalidArgument("add the serving engine before the borrower")
        if self._rollout is not None or self._listener is not None:
            raise InvalidArgument("this device has a borrower already: one per device")
        if self.safety.cause is not None:
            raise Unavailable(f"this device lends no more: {self.gave_back}")
        return self._slab_bytes

    def _check_geometry(self, geometry: KVGeometry) -> None:
        """Raise when the device's slabs do not suit a borrower's geometry."""
        slab_bytes = self.arbiter.slab_bytes
        suited = choose_slab_bytes(self._serving_kv.geometry, geometry)
        if slab_bytes % suited and geometry.waste(slab_bytes) > WASTE_MAX:
            raise InvalidArgument(
                f"slabs of {slab_bytes / MIB:g} MiB waste {geometry.waste(slab_bytes):.0%} of the "
                f"borrower's memory: open the device with slab_bytes={suited}"
            )

    def _begin_lending(self) -> None:
        """Start who grants credit and who minds deadlines."""
        self._creditor = certified_creditor(
            self.gate,
            self._state,
            self._model,
            self._log,
            policy=self._policy,
            context_tokens=self._limits.request_tokens,
            step_tokens=self._limits.step_tokens,
            clock=self._clock,
            watchdog=self._watchdog,
        )
        if self._serving is not None:
            self._serving.lend_by(self._creditor)
        self._state.beat()
        self._creditor.start()
        self._keeper.start()
        # A daemon thread that lends when the interpreter ends could never take it up again.
        atexit.register(self._end_lending_at_exit)

    def _end_lending_at_exit(self) -> None:
        if self._creditor is None:
            return
        self._creditor.stop()
        self.gate.shut_down()
        # In a fraction of a second it has looked at the gate; longer nobody is waited for.
        for _ in range(_EXIT_LOOKS):
            if not self._creditor.is_lending:
                return
            threading.Event().wait(_EXIT_LOOK_S)

    def _why_refused(self) -> Reason:
        if self._creditor is None:
            return Reason.CLOSED
        return REASONS.get(self._creditor.last_refusal, Reason.SERVING_BUSY)

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
        if self._serving is None:
            raise InvalidArgument("add the serving engine before a cap on what the device lends")
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
        if self._serving is None:
            raise InvalidArgument("add the serving engine before a reading of how it is")
        if self.safety.cause is not None:
            raise Unavailable(f"this device lends no more: {self.gave_back}")
        arbiter, lender = self.arbiter, self.lender
        serving = arbiter.snapshot().partitions[_SERVING]
        blocks = arbiter.slab_count * self._serving_kv.blocks_per_slab
        revocations, ebbs = lender.pressures
        return DeviceReading(
            pool_bytes=arbiter.slab_count * arbiter.slab_bytes,
            reserve_bytes=serving.reserve_slabs * arbiter.slab_bytes,
            slab_bytes=arbiter.slab_bytes,
            slo=self._slo,
            used_share=serving.used_blocks / blocks,
            running=self._state.running,
            waiting=self._state.waiting,
            first_tokens=tuple(self._state.first_tokens),
            later_tokens=tuple(self._state.later_tokens),
            lent_bytes=len(lender.lent_slabs()) * arbiter.slab_bytes,
            cap_bytes=min(lender.cap_slabs, arbiter.slab_count) * arbiter.slab_bytes,
            revocations=revocations,
            ebbs=tuple(
                (before * arbiter.slab_bytes, left * arbiter.slab_bytes) for before, left in ebbs
            ),
            evidence=self._serving.evidence(),
            **read_refusals(self._creditor),
        )

    # ---- the device itself ----------------------------------------------------------------------

    def _tend(self) -> None:
        with self.safety:
            self._state.beat()
            self.lender.tend()

    @property
    def gave_back(self) -> str | None:
        """Why the device stopped lending; None while all is well."""
        cause = self.safety.cause
        return None if cause is None else f"{type(cause).__name__}: {cause}"

    def _give_back(self, cause: BaseException) -> None:
        """Stop launches, wait with a deadline, then reclaim; the mapping stays in place."""
        self._log.append_gave_back(f"{type(cause).__name__}: {cause}")
        self._stop_lending()

    def _stop_lending(self) -> None:
        if self._creditor is None:
            return
        # From the last line up, and each even if one before it failed. First comes who could open
        # the gate again.
        with ExitStack() as steps:
            steps.callback(self.gate.shut_down)
            steps.callback(self.lender.close)
            steps.callback(self.gate.wait_parked, timeout_ms=self._policy.park_wait_ms)
            steps.callback(self.gate.close, CloseReason.GAVE_BACK)
            steps.callback(self._creditor.stop)
            if self._serving is not None:
                steps.callback(self._serving.lend_by, None)

    def close(self) -> None:
        """Stop lending, take everything back, and write the certificates out. Idempotent.

        Stop the engines first; views of the pool stay valid as long as someone holds them. When the
        last certificates cannot be written, `gave_back` says so, and what was learned about steps
        is saved all the same.
        """
        if self._is_closed:
            return
        self._is_closed = True
        if self._serving is None:
            return
        atexit.unregister(self._end_lending_at_exit)
        self._keeper.stop()
        if self.safety.cause is None:
            self._stop_lending()
        if self._listener is not None:
            self._listener.close()
        try:
            self._log.close()
        except RoseError as error:
            self.safety.report(error)
        if self._latency_path is not None:
            save_latency_model(self._model, self._latency_path, identity=self._identity)

    def _latency_model(
        self, geometry: KVGeometry, step_tokens: int, cost: ModelCost | None
    ) -> LatencyModel:
        """Return the model of the last run on this device, or one that starts from a prior."""
        name = "cpu" if self._gpu is None else self._gpu.device.name
        cores = len(os.sched_getaffinity(0))
        self._identity = f"{name}, {cores} cores; {geometry}, {cost}; steps of {step_tokens} tokens"
        if self._latency_path is not None:
            learned = load_latency_model(self._latency_path, self._policy, identity=self._identity)
            if learned is not None:
                return learned
        return new_latency_model(
            self._policy,
            step_tokens=step_tokens,
            prior_ms=None if cost is None else prior_ms(name, cost),
        )


def _check_descriptors(memory_objects: int) -> None:
    """Raise when memory of the host cannot be kept slab by slab: each is a descriptor."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if memory_objects + _OTHER_DESCRIPTORS > limit:
        raise InvalidArgument(
            f"isolation='mapped' keeps a descriptor for each of {memory_objects} slabs, and this "
            f"process may have {limit}: raise slab_bytes, or the limit (ulimit -n)"
        )
